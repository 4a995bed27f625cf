"""Code around the product: the local cluster, load, stand-ins, measuring, benchmarks. No product code imports it."""
