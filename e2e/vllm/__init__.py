"""Services of type vllm on real pods: the image of vLLM for the local cluster, and the scenarios."""
