"""Sources of the catalog: the Kubernetes API, or a file."""
