"""What a step of an engine costs, and what a replica can carry: measured by the engine, used by all programs."""
