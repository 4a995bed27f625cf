"""The CPU kernels of engine_image/kernels, and the forward pass built on them."""
