"""Cost of engine steps and capacity of replicas: measured by the engine, used by all programs."""
