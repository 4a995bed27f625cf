"""The server that Envoy asks where each request goes (external processing), and the path of a request through it."""
