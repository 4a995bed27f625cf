"""KV cache events for routers and indexes of others, on ZeroMQ in vLLM's encoding."""
