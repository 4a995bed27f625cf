"""What one gateway pod tells others: the operator, its peers, people, Prometheus and the kubelet."""
