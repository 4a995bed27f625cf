"""Settings that several programs share: values, defaults and bounds. Standard library only."""
