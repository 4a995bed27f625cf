"""HTTP/1.1 with Envoy and with engines."""
