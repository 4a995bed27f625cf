"""The external processing server of Envoy, and the path of a request through it."""
