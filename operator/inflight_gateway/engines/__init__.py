"""What the gateway knows of each engine from the requests that it sent there."""
