"""HTTP/1.1 with Envoy."""
