"""The engines that others of the service may read weights from. Pure."""

from __future__ import annotations

from inflight_base.manifest.engines import INFLIGHT
from inflight_base.manifest.slices import address_of
from inflight_operator.api.resolve import asks_peers
from inflight_operator.decide.status.conditions import WeightsRead
from inflight_operator.observe.pods import PodView
from inflight_operator.reconcile.memory import Memory
from inflight_operator.reconcile.snapshot import Snapshot

MOST_PEERS = 128
"""Engines that are named: one that loads asks them in turn."""


def peers(snapshot: Snapshot, memory: Memory) -> tuple[tuple[str, str], ...]:
    """Returns the engines with the version of the model that new pods load, as uids of the pods and addresses of their
    admin ports; also those that still load, which give what they have. The oldest where they are too many, so that a
    pod that becomes ready changes nothing."""
    if not asks_peers(snapshot.service.spec):
        return ()
    known = dict(memory.digests)
    newest = next(reversed(known.values()), "")
    reachable = _reachable(snapshot)
    # Of an earlier rollout again where that was undone.
    loaded = {known.get(pod.rollout, newest) for pod in reachable if not pod.ready} or {newest}
    named = [pod for pod in reachable if known.get(pod.rollout, newest) in loaded]
    named.sort(key=lambda pod: (pod.created, pod.name))
    addresses = ((pod.uid, address_of(pod.ip, pod.admin_port or 0)) for pod in named[:MOST_PEERS])
    return tuple(sorted(addresses))


def loading(snapshot: Snapshot) -> tuple[PodView, ...]:
    """Returns the pods whose engines load their model, and ask others for it."""
    if not asks_peers(snapshot.service.spec):
        return ()
    return tuple(pod for pod in _reachable(snapshot) if not pod.ready)


def weights_read(snapshot: Snapshot, memory: Memory) -> dict[str, WeightsRead]:
    """Returns how the weights of each pod came, by its uid. It stays known while scrapes of the pod fail."""
    if not asks_peers(snapshot.service.spec):
        return {}
    known = {pod.uid: memory.weights[pod.uid] for pod in snapshot.replicas if pod.uid in memory.weights}
    return known | {
        uid: WeightsRead(one.peer_weights, one.source_weights, one.peer_failures) for uid, one in snapshot.fresh.items()
    }


def _reachable(snapshot: Snapshot) -> list[PodView]:
    return [pod for pod in snapshot.replicas if pod.ip and pod.admin_port is not None and pod.engine.name == INFLIGHT]
