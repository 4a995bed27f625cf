"""Scheduling policies that engine and gateway share: pure code.

Both order what waits by the same rules: `deadline` and `priority` within a queue, `service_counter` between tenants and
classes.
"""
