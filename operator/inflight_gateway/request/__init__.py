"""Reading of requests, and the names and formats of HTTP that the gateway's programs share."""
