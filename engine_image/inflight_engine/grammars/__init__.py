"""Grammars of requests, compiled and matched by llguidance."""
