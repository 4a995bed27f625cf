"""State that one gateway pod exposes to the operator, users, Prometheus and the kubelet."""
