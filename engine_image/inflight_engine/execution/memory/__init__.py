"""Memory of the host and the device: sizes, the KV cache's share, and copies between the two."""
