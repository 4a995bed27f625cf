"""Where the catalog's content comes from: the Kubernetes API, or a file."""
