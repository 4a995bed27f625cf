"""Envoy's configuration, as pure builders of its resources, and graceful shutdown. Terms are Envoy's."""
