"""A release in a registry on this machine, and pods that pull from it: `make e2e-release`."""
