"""Tensor parallelism: the processes of one engine, and how they meet."""
