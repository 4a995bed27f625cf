"""The explanation printed by `kubectl inflight why`. Pure: from the service, its pods and their events."""
