"""`kubectl inflight`: what people ask of a fleet, from a terminal."""
