"""Metrics, access log and reports of requests."""
