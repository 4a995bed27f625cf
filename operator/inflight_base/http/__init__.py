"""HTTP/1.1 with engines: heads of messages, and connections that are kept."""
