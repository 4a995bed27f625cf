"""Reconciliation of a service in rounds: snapshot -> decide -> execute -> report.

`snapshot` holds all inputs of a round as one value. `decide` is pure: it computes a plan. `execute` carries out the
plan, and `report` writes status and events. `rounds` calls the four in order.
"""
