"""Pure decisions: what was observed goes in, what to do and why comes out. No I/O, no clock, no Kubernetes."""
