"""State that one gateway pod exposes to the operator, its peers, users, Prometheus and the kubelet."""
