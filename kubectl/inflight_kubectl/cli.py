"""The command line of `kubectl inflight`."""


def main() -> None:
    """Entry point of the programs `kubectl-inflight` and `inflight`."""
