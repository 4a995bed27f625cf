"""Envoy's configuration: pure builders of its resources, the ADS server, and graceful shutdown. Terms are Envoy's:
listeners, routes, clusters, endpoints."""
