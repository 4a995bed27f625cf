"""The operator's own metrics and health, and the server that serves them."""
