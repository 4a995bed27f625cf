"""Container images: built, archived and stored for the node's runtime."""
