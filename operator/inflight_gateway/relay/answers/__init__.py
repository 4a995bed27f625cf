"""Engines' answers as data: frames, tokens, usage and memory. No I/O, no clock."""
