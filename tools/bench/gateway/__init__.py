"""Benchmarks of the gateway: its overhead over a direct connection, and routing on real replicas."""
