"""Programs of the cluster, built from Go modules or taken from packages."""
