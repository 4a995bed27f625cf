"""Simulation of a fleet of replicas behind a router, under a scaler that adds and removes pods."""
