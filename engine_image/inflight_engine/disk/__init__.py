"""The tier of the KV cache on a disk, behind the one in host memory."""
