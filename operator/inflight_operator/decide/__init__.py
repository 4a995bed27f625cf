"""Pure decisions: from observations to actions with reasons. No I/O, no clock, no Kubernetes."""
