"""Requests in the picker: one record each, from the first question of a relay to its report."""
