"""The fields of spec.engine."""
