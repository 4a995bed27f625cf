"""A load of chosen shape on a service, and the report of client-side metrics."""
