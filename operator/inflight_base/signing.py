"""Signed calls between operator, gateway and engines."""
