"""Iteration-level scheduling: pure Python and numpy, no torch, no clock, no I/O."""
