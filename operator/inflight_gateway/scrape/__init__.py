"""Load of engines, read from their metrics pages every second."""
