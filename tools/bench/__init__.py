"""The benchmarks behind `make bench-*`."""
