"""The Inflight engine: serves one language model with continuous batching over a paged KV cache."""
