"""The thin edge to the API server: server-side apply, status, events."""

from inflight_operator.apply.children import ChildConflictError, ChildrenChanges, sync_children
from inflight_operator.apply.difference import needs_apply
from inflight_operator.apply.kube import KubeApi
from inflight_operator.apply.status import status_patch
from inflight_operator.apply.token import admin_token

__all__ = [
    "ChildConflictError",
    "ChildrenChanges",
    "KubeApi",
    "admin_token",
    "needs_apply",
    "status_patch",
    "sync_children",
]
