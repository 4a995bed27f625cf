"""Checks of requests before any of their bytes is kept for long: heads, keys, and memory for bodies."""
