"""Prefetching in a round: from the snapshot to the decision, and to the status. Pure."""

from __future__ import annotations

from dataclasses import replace

from inflight_operator.api.status import PrefetchStatus
from inflight_operator.decide.prefetch import Prefetching, prefetch
from inflight_operator.decide.status.sentences import sentence
from inflight_operator.reconcile.memory import Memory
from inflight_operator.reconcile.snapshot import Snapshot


def prefetching(snapshot: Snapshot, memory: Memory) -> Prefetching | None:
    """Returns what to fetch now; None for a service that does not ask for it."""
    wanted, places = snapshot.policy.prefetch, snapshot.places
    if wanted is None or places is None:
        return None
    served = memory.digests[-1][1] if memory.digests else ""
    now = snapshot.at.timestamp()
    return prefetch(
        replace(wanted, served=served), places, snapshot.fetches, memory.prefetch, snapshot.policy.facts, now
    )


def prefetch_status(found: Prefetching | None) -> PrefetchStatus | None:
    """Returns the status; None for a service that does not ask for it."""
    if found is None:
        return None
    progress = found.progress
    return PrefetchStatus(
        done=len(progress.done),
        total=found.total,
        bytes=progress.num_bytes * len(progress.done),
        total_bytes=progress.num_bytes * found.total if progress.num_bytes else None,
        reason=found.reason.code,
        message=sentence(found.reason)[:1024],
        run=progress.run,
        digest=progress.digest or None,
        served=progress.served or None,
        places=list(progress.done),
    )
