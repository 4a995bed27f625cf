"""Manifests: units, lenient reading, keys, names and labels."""
