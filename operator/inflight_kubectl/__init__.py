"""`kubectl inflight`: inspect and operate a fleet from a terminal."""
