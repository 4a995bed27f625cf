"""The stream between a relay process and the picker of its pod."""
