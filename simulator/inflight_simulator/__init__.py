"""The engine's digital twin: its scheduler on a virtual clock."""
