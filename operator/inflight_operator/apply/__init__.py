"""The thin edge to the API server and to engines: server-side apply, status, events, limits."""
