"""Scenarios on real pods: tests, disruptions under traffic, and a storm of waking services."""
