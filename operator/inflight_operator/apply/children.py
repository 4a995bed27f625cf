"""Applies a service's desired children to the cluster with as few calls as possible.

Children are independent: a refused child blocks only the children that depend on it, and is retried with back-off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from inflight_base.kube.client import KubeApi
from inflight_base.kube.difference import needs_apply
from inflight_base.kube.errors import KubeApiError
from inflight_base.manifest import Manifest
from inflight_base.manifest.names import SLICE_OF_LABEL
from inflight_operator.clock import pause

Key = tuple[str, str]
"""Kind and name of a child."""

UNREAD_KINDS = ("Secret",)
"""Kinds that the operator may write but not read."""

_NEEDED_BY_PODS = ("Secret", "ConfigMap")
"""Kinds without which pods do not start."""

_BEFORE_PODS = (*_NEEDED_BY_PODS, "NetworkPolicy")
"""Kinds that precede the Deployment and do not depend on one another."""


class ChildConflictError(Exception):
    """An object with a child's name exists and has another owner; it is left unchanged."""


class ChildChangedError(Exception):
    """The applied values did not persist: another writer in the cluster changes the object."""


@dataclass(frozen=True, slots=True)
class _Refused:
    """A child that could not be written.

    Attributes:
        wanted: the refused manifest; None for a deletion. Any other manifest is tried at once.
        times: consecutive refusals.
        until: end of the back-off, steady clock.
    """

    wanted: Manifest | None
    times: int
    until: float
    message: str


@dataclass(slots=True)
class ChildrenState:
    """State about a service's children besides the objects themselves; all of it can be lost.

    Attributes:
        equal: for each child, wanted and live objects that were found to need nothing.
        unread: children of kinds that cannot be read, as they were last written.
        refused: children that could not be written.
    """

    equal: dict[Key, tuple[Manifest, Manifest]] = field(default_factory=dict)
    unread: dict[Key, Manifest] = field(default_factory=dict)
    refused: dict[Key, _Refused] = field(default_factory=dict)

    @property
    def failures(self) -> dict[Key, str]:
        """Reasons of refused writes, by child."""
        return {key: one.message for key, one in self.refused.items()}

    def rests(self, key: Key, wanted: Manifest | None, now: float) -> bool:
        """Returns True while the same write, which was refused, still backs off."""
        refused = self.refused.get(key)
        return refused is not None and refused.wanted == wanted and now < refused.until

    def refuse(self, key: Key, wanted: Manifest | None, error: Exception, now: float) -> None:
        """Notes that a write was refused; None is a deletion."""
        before = self.refused.get(key)
        times = 1 if before is None or before.wanted != wanted else before.times + 1
        asked = error.retry_after if isinstance(error, KubeApiError) else None
        self.refused[key] = _Refused(wanted, times, now + max(pause(times), asked or 0.0), str(error))


@dataclass(slots=True)
class ChildrenChanges:
    """The writes of a round. All are empty in a steady state.

    Attributes:
        applied: live objects as the API server has them now.
        deleted: kinds and names.
        failed: children refused in this round, with the reason.
    """

    applied: list[Manifest] = field(default_factory=list)
    deleted: list[Key] = field(default_factory=list)
    failed: dict[Key, Exception] = field(default_factory=dict)


async def sync_children(
    api: KubeApi,
    wanted: Sequence[Manifest],
    live: Sequence[Manifest],
    state: ChildrenState,
    clock: Callable[[], float],
    *,
    keep: frozenset[Key] = frozenset(),
) -> ChildrenChanges:
    """Applies each wanted child that differs from the live one, and deletes live children that are not wanted.

    A child left from a deleted service of the same name is replaced. Raises nothing: refused writes are in the result,
    and stay in `state.failures` until they succeed.

    Args:
        wanted: children, as `render` builds them (at least one). Those of kinds that precede pods are written
            together, then the others in their order.
        live: all objects that carry the service's label, of the kinds `render` builds and the operator may read, with
            their `metadata.managedFields`; objects whose controller is not the service are never deleted.
        keep: children that are neither wanted nor to be deleted.
    """
    present = {_key(child): child for child in live}
    sync = _Sync(api, owner_uid(wanted[0]), present, state, clock, ChildrenChanges())
    first = [child for child in wanted if child["kind"] in _BEFORE_PODS]
    # A busy API server takes some tenths of a second for each call: pods wait for the longest one, not for the sum.
    await asyncio.gather(*(sync.make(child) for child in first if sync.is_due(child)))
    for child in wanted:
        if child["kind"] not in _BEFORE_PODS and sync.is_due(child):
            await sync.make(child)
    names = {_key(child) for child in wanted} | keep
    for key, child in present.items():
        if key not in names and owner_uid(child) == sync.owner:
            await sync.remove(key, child)
    for key in [key for key in state.refused if key not in names and key not in present]:
        del state.refused[key]
    return sync.changes


@dataclass(frozen=True, slots=True)
class _Sync:
    """Applies and deletes a service's children in one round."""

    api: KubeApi
    owner: str | None
    present: Mapping[Key, Manifest]
    state: ChildrenState
    clock: Callable[[], float]
    changes: ChildrenChanges

    def is_due(self, child: Manifest) -> bool:
        """Returns True if the child may differ from the live one, and can be written now."""
        key = _key(child)
        live = self.present.get(key)
        if self._is_made(key, child, live):
            self.state.refused.pop(key, None)
            return False
        return not self.state.rests(key, child, self.clock()) and not self._lacks(child, live)

    async def make(self, child: Manifest) -> None:
        key = _key(child)
        try:
            applied = await self._apply(key, child, self.present.get(key))
        except (KubeApiError, ChildConflictError, ChildChangedError) as error:
            self._refuse(key, child, error)
            return
        self.state.refused.pop(key, None)
        if applied is not None:
            self.changes.applied.append(applied)

    async def remove(self, key: Key, live: Manifest) -> None:
        if self.state.rests(key, None, self.clock()):
            return
        try:
            await self.api.delete(key[0], live["metadata"]["namespace"], key[1], live["metadata"].get("uid"))
        except KubeApiError as error:
            self._refuse(key, None, error)
            return
        self.state.refused.pop(key, None)
        self.changes.deleted.append(key)

    def _is_made(self, key: Key, child: Manifest, live: Manifest | None) -> bool:
        if key[0] in UNREAD_KINDS:
            return self.state.unread.get(key) == child
        known = self.state.equal.get(key)
        return known is not None and known[0] is child and known[1] is live

    def _lacks(self, child: Manifest, live: Manifest | None) -> bool:
        """Returns True if the child does not exist yet and an object that it depends on is refused. Endpoints would
        become those of another owner's Service of the same name."""
        if live is not None:
            return False
        if child["kind"] == "EndpointSlice":
            return ("Service", child["metadata"]["labels"][SLICE_OF_LABEL]) in self.state.refused
        return child["kind"] == "Deployment" and any(kind in _NEEDED_BY_PODS for kind, _ in self.state.refused)

    def _refuse(self, key: Key, wanted: Manifest | None, error: Exception) -> None:
        self.state.refuse(key, wanted, error, self.clock())
        self.changes.failed[key] = error

    async def _apply(self, key: Key, child: Manifest, live: Manifest | None) -> Manifest | None:
        """Applies the child; returns the live object, or None if it was not written."""
        kind, name = key
        if kind in UNREAD_KINDS:
            # Fields of other managers are not visible, so the object is not taken over.
            await self.api.apply(child, force=False)
            self.state.unread[key] = child
            return None
        namespace = child["metadata"]["namespace"]
        existing = live or await self.api.get(kind, namespace, name)
        if existing is not None and owner_uid(existing) != self.owner:
            if not _is_left_over(child, existing):
                raise ChildConflictError(_conflict(child))
            # The garbage collector would remove it too, but it can miss that another object replaced the owner.
            await self.api.delete(kind, namespace, name, existing["metadata"]["uid"])
            self.changes.deleted.append(key)
            existing = None
        if needs_apply(child, existing):
            applied = await self.api.apply(child)
            if needs_apply(child, applied):
                self.changes.applied.append(applied)
                raise ChildChangedError(f"{kind} {name} is changed by something else in the cluster as it is applied")
            return applied
        if existing is live and live is not None:
            self.state.equal[key] = (child, live)
        return None


def _is_left_over(wanted: Manifest, existing: Manifest) -> bool:
    """Returns True if the object belonged to a deleted InferenceService of the same name."""
    ours, theirs = _controller(wanted), _controller(existing)
    return bool(ours and theirs and (ours["kind"], ours["name"]) == (theirs["kind"], theirs["name"]))


def _conflict(wanted: Manifest) -> str:
    kind, metadata = wanted["kind"], wanted["metadata"]
    return (
        f"{kind} {metadata['name']} exists in namespace {metadata['namespace']} and does not belong to this"
        " InferenceService: delete or rename it, or give the InferenceService another name"
    )


def owner_uid(child: Manifest) -> str | None:
    """Returns the uid of the object's controller; None without one."""
    controller = _controller(child)
    return controller["uid"] if controller else None


def _controller(child: Manifest) -> dict[str, str] | None:
    """Returns the owner reference of the object's controller; None without one."""
    return next((owner for owner in child["metadata"].get("ownerReferences", ()) if owner.get("controller")), None)


def _key(child: Manifest) -> Key:
    return child["kind"], child["metadata"]["name"]
