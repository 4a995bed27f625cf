"""Watches of the cluster: those that fill the cache, and handlers of the services' events."""
