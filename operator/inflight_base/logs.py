"""Logs of operator and gateway."""
