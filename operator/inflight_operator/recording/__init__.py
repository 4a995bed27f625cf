"""Recording of inputs and outputs of decisions, and replay.

`recorder` writes each round of a service, `reader` reads rounds back and compares plans.
"""
