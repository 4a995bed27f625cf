"""Execution of step plans: one packed forward pass over a paged KV cache, and a token for each sequence due."""
