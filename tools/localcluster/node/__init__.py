"""The machine's own node: control plane, kubelet, addresses, and what they leave behind."""
