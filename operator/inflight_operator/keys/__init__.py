"""Keys that the operator creates in Secrets and derives tokens from: of engines' admin tokens, of the gateway."""
