"""The checks of `kubectl inflight doctor`, one file for each area. `run.CHECKS` has them in order."""
