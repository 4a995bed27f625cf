"""The thin edge to the API server: server-side apply, status, events."""

from inflight_operator.apply.children import ChildConflictError, sync_children
from inflight_operator.apply.difference import needs_apply
from inflight_operator.apply.kube import OperatorApi
from inflight_operator.apply.status import status_patch

__all__ = ["ChildConflictError", "OperatorApi", "needs_apply", "status_patch", "sync_children"]
