"""The engine beside other engines, on the same model and requests: `python -m tools.bench.engine`, or `make bench`."""
