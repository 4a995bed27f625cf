"""Kubernetes objects as JSON: names, keys and values that operator, gateway and plugin read and write alike.

They import the standard library only: the plugin's commands start with it.
"""

from __future__ import annotations

from typing import Any

Manifest = dict[str, Any]
"""A Kubernetes object in the form that the API server accepts."""
