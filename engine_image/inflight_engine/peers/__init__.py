"""Blocks of keys and values from other engines of the service."""
