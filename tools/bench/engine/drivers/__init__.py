"""A driver program for each engine, in its own environment: jobs in, seconds out, as JSON lines.

The parts that all share import nothing but the standard library, since a peer's environment has little else of ours.
"""
