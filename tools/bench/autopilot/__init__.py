"""The operator's limits on a real engine beside fixed ones: `python -m tools.bench.autopilot`, `make bench-autopilot`."""
