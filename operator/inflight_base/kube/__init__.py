"""The Kubernetes API: one client, one reflector, the difference of what is applied."""
