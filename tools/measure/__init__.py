"""Processes, percentiles and figures that benchmarks and checks share."""
