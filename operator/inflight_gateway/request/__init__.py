"""What the gateway reads of a request, and the names and formats of HTTP that its programs share."""
