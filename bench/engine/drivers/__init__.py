"""One program for each engine, started in an environment of its own: it takes jobs as JSON lines and answers seconds.

The parts that all share import nothing but the standard library, since a peer's environment has little else of ours.
"""
