"""The number of replicas: demand, capacity, behavior, and sleep."""
