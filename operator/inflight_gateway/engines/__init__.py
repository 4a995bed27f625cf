"""The gateway's accounts of the requests that it sent to each engine."""
