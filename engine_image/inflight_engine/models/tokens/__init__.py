"""Text and its tokens."""
