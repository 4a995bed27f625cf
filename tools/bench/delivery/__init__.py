"""Models from a store over a link of a limited rate: `python -m tools.bench.delivery`, or `make bench-delivery`."""
