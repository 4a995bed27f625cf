"""Who owns which KV block. Numbers only: the tensors live with the runner."""
