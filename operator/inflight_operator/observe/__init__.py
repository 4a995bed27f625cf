"""Observations of the cluster and the engines: pods, scrapes, and sliding windows over them."""
