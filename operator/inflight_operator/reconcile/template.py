"""Whether a service's pods are replaced now: what a user changed at once, what an upgrade changed at its turn, and
nothing that the operator cannot read completely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inflight_operator.decide.decision import Reason
from inflight_operator.reconcile.memory import Memory
from inflight_operator.reconcile.plan import UpgradeState
from inflight_operator.reconcile.snapshot import Snapshot
from inflight_operator.render import Manifest
from inflight_operator.render.deployment import SPEC_DIGEST, TEMPLATE_DIGEST


@dataclass(frozen=True, slots=True)
class Template:
    """Attributes:
    hold: the live pod template stays as it is.
    state: where the service stands with a newer engine release.
    why: what to say about it; None when there is nothing to say.
    """

    hold: bool = False
    state: UpgradeState | None = None
    why: Reason | None = None


def decide_template(snapshot: Snapshot, memory: Memory, children: Sequence[Manifest], *, rolled_out: bool) -> Template:
    """What becomes of the pod template in this round.

    Args:
        children: as rendered now.
        rolled_out: whether all replicas are of the live template and ready.
    """
    wanted = next(child for child in children if child["kind"] == "Deployment")
    live = _annotations(snapshot.deployment)
    in_place = live.get(TEMPLATE_DIGEST) == _annotations(wanted)[TEMPLATE_DIGEST]
    if snapshot.unread:
        # Pods that were there once and are gone are made again, of what can be read.
        first = snapshot.deployment is None and snapshot.service.status.engine is None
        hold = first or (snapshot.deployment is not None and not in_place)
        return Template(hold=hold, why=Reason("SpecNotUnderstood", {"said": "; ".join(snapshot.unread)}))
    if snapshot.deployment is None:
        return Template()
    if in_place:
        moving = memory.moving is not None and not rolled_out
        return Template(state="Moving", why=Reason("EngineUpgrade")) if moving else Template()
    if not _same_spec(snapshot, live):
        return Template()
    if not any(pod.serves for pod in snapshot.pods):
        return Template()  # no pod takes requests, so there is nothing that moving could harm
    if memory.moving is not None or snapshot.may_move:
        return Template(state="Moving", why=Reason("EngineUpgrade"))
    return Template(hold=True, state="Pending", why=Reason("EngineUpgradePending", {"holder": snapshot.mover}))


def _same_spec(snapshot: Snapshot, live: Manifest) -> bool:
    """Whether the live pods were made from the spec as it is: then only the operator or its engine image changed."""
    made_from = live.get(SPEC_DIGEST)
    if made_from is not None:
        return bool(made_from == snapshot.policy.template_inputs)
    # An operator that did not note it: its status says for which spec it last worked.
    return snapshot.service.status.observed_generation == snapshot.service.metadata.generation


def _annotations(deployment: Manifest | None) -> Manifest:
    return (deployment or {}).get("metadata", {}).get("annotations") or {}
