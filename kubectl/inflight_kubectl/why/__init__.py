"""What `kubectl inflight why` says of a service. Pure: from the service, its pods and their events."""
