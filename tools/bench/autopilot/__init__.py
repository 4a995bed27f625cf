"""Limits set by the operator on a real engine, beside fixed ones: `python -m tools.bench.autopilot`."""
