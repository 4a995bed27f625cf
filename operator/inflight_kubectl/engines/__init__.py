"""Engines and gateways behind the cluster: their metrics, settings, answers and recordings."""
