"""Renders the dashboards with Grafana's own front-end libraries in headless Chromium.

It is a renderer around these libraries, not Grafana.
"""
