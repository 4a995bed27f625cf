"""Paths of relays' reports on the picker's socket. A module of its own: relays do not import the picker's server."""

FINISHED = "/v1/finished"
RETRIED = "/v1/retried"
