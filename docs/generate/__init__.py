"""Generators of the reference pages and of the diagrams: `python -m docs.generate --write`, or `--check`."""
