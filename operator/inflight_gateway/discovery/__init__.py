"""The catalog of services, engines and API keys, and its sources: the Kubernetes API, or a file."""
