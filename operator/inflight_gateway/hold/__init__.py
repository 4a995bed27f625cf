"""Requests that no replica can start soon: bounds, order and fairness, without I/O and clock."""
