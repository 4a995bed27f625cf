"""Scheduling policies that engine and gateway share: pure code."""
