"""Tenants of the services behind the gateway: API keys, limits, usage, and the signed tenant header.

`gate.Gate` is what the picker calls; the rest are its parts.
"""
