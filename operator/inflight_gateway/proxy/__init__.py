"""Envoy's configuration: pure builders of its resources, the server that hands them out (ADS), and its graceful
shutdown. Envoy's names for things are used: listeners, routes, clusters, endpoints."""
