"""Memory of the host and the device: how much there is, what the KV cache gets, and copies between the two."""
