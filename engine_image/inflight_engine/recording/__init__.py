"""Recording and replay: inputs of the scheduler and digests of its plans in a file."""
