"""The way to the cluster: its resources, pods and keys, as the user may see them."""
