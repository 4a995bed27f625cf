"""Generators of the reference pages: `python -m docs.generate --write`, or `--check`."""
