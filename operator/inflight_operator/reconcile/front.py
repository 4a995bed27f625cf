"""The steps in which a service's address moves between the gateway's pods and the engines.

Its Service always has endpoints. To the gateway: the gateway's pods are added, then the engines go. To the engines: its
pods are replaced, because those from before may ask for the gateway's signature; then the engines are added, then the
gateway's pods go. Clients with open connections are served by the gateway for a while after that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from inflight_base.manifest.slices import GatewayAddress
from inflight_operator.reconcile.memory import Memory
from inflight_operator.reconcile.snapshot import Snapshot, deployment_view

UNUSED_SECONDS = 30.0
"""Seconds without a request at the gateway after which it no longer serves a service that left it."""

LONGEST_LEAVE = 900.0
"""Most seconds for which the gateway serves such a service: longer than connections to it last."""


@dataclass(frozen=True, slots=True)
class Front:
    """A step.

    Attributes:
        pods: the gateway's pods as endpoints of the Service.
        hold: the live Service stays as it is.
        keep: the live slices of the gateway's pods stay as they are.
        leaving: the gateway serves the service, which is no longer behind it.
    """

    pods: tuple[GatewayAddress, ...] = ()
    hold: bool = False
    keep: bool = False
    leaving: bool = False


def front(snapshot: Snapshot, memory: Memory) -> tuple[Front, Memory]:
    """Returns the step of this round, and the memory with the time of the leave."""
    view, pods = snapshot.front, snapshot.gateway_pods or ()
    if snapshot.policy.gateway:
        step = Front(pods, hold=view.elsewhere and not view.gateway_listed, keep=not pods)
        return step, replace(memory, left_at=None)
    if not snapshot.settings.gateway_service or not view.routed:
        return Front(), replace(memory, left_at=None)
    deployment = deployment_view(snapshot.deployment, memory.replicas)
    # In the first round, the Deployment is the one from before.
    replaced = memory.left_at is not None and deployment is not None and deployment.rolled_out
    if not view.elsewhere and not replaced:
        return Front(pods, hold=True, keep=not pods, leaving=True), replace(memory, left_at=snapshot.now)
    left_at = snapshot.now if memory.left_at is None else memory.left_at
    since, seen = snapshot.now - left_at, snapshot.leaving
    unused = seen is not None and seen.known and min(seen.idle_s, since) >= UNUSED_SECONDS
    listed = view.engines_listed
    leaving = since < LONGEST_LEAVE and not (unused and listed)
    step = Front(() if listed else pods, keep=not pods and not listed, leaving=leaving)
    return step, replace(memory, left_at=left_at)
