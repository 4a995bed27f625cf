"""The gateway beside Envoy: picks a replica for each request, holds requests while no replica can start them, and
continues responses after a replica failure."""
