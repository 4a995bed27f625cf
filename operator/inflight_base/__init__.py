"""Code that operator and gateway share, and the plugin in part. It knows none of them."""
