"""The gateway beside Envoy: picks a replica for each request, holds requests that no replica can start, and continues
answers whose replica failed."""
