"""Fits the cost model to measured steps: numpy alone, for the engine while it runs and for recordings of it."""
