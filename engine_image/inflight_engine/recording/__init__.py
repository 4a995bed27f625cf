"""Recording and replay: inputs and decisions of the scheduler in a file."""
