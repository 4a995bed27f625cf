"""Ownership of KV blocks. Numbers only: the runner has the tensors."""
