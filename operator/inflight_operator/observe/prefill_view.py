"""The InferenceService whose engines compute a service's prompts, as the service sees it."""

from __future__ import annotations

from dataclasses import dataclass

from inflight_base.manifest import Manifest


@dataclass(frozen=True, slots=True)
class PrefillView:
    """Replicas of the prefill set, as its status has them."""

    name: str
    replicas: int = 0
    ready: int = 0


def prefill_view(live: Manifest | None) -> PrefillView | None:
    """Returns the view of the InferenceService; None without one."""
    if live is None:
        return None
    status = live.get("status") or {}
    return PrefillView(live["metadata"]["name"], status.get("replicas") or 0, status.get("readyReplicas") or 0)
