"""What `make bench-*` measures."""
