"""What the scheduler was told and what it decided, written to a file and replayed."""
