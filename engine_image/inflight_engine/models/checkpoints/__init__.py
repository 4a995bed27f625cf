"""Checkpoints of all formats: what a model is, and its weights."""
