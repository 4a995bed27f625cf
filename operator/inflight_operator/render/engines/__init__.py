"""Containers of the engine types, one file for each."""
