"""The operator's limits on a real engine, beside fixed ones: `python -m bench.autopilot`, or `make bench-autopilot`."""
