"""Clients and suites of others against an engine, and against a gateway in front of it."""
