"""Estimates from what an engine does, while it runs or from a recording: the cost of steps, and lengths of outputs."""
