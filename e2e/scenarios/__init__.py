"""Scenarios on real pods: what a user does, and what must hold meanwhile."""
