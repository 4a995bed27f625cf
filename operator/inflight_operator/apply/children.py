"""Makes a service's children in the cluster equal to the wanted ones, with as few calls as that takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from inflight_operator.apply.difference import needs_apply

Manifest = dict[str, Any]
Key = tuple[str, str]
"""Kind and name of a child."""


class ChildConflictError(Exception):
    """An object with a child's name exists and belongs to someone else; it is left as it is."""


@dataclass(frozen=True, slots=True)
class ChildrenChanges:
    """What was written, as `Kind/name`. Both are empty in a steady state."""

    applied: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()


class ChildApi(Protocol):
    """What is needed of `KubeApi`."""

    async def get(self, kind: str, namespace: str, name: str) -> Manifest | None: ...

    async def apply(self, manifest: Manifest) -> Manifest: ...

    async def delete(self, kind: str, namespace: str, name: str, uid: str | None = None) -> None: ...


async def sync_children(api: ChildApi, wanted: list[Manifest], live: list[Manifest]) -> ChildrenChanges:
    """Applies each wanted child that differs from the live one, and deletes live children that are not wanted.

    A child left from a deleted service of the same name is replaced.

    Args:
        api: the API server.
        wanted: all children, as `render` builds them (at least one).
        live: all objects that carry the service's label, of the kinds `render` builds, with their
            `metadata.managedFields`; objects whose controller is not the service are never deleted.

    Raises:
        ChildConflictError: an object with a wanted child's name belongs to someone else. Children before it were
            applied.
        KubeApiError: the API server refused a call.
    """
    owner = owner_uid(wanted[0])
    present = {_key(child): child for child in live}
    applied: list[str] = []
    deleted: list[str] = []
    for child in wanted:
        kind, name = key = _key(child)
        existing = present.get(key) or await api.get(kind, child["metadata"]["namespace"], name)
        if existing is not None and owner_uid(existing) != owner:
            if not _is_left_over(child, existing):
                raise ChildConflictError(_conflict(child))
            # The garbage collector would remove it too, but it can miss that one object took another's place.
            await api.delete(kind, child["metadata"]["namespace"], name, existing["metadata"]["uid"])
            deleted.append(f"{kind}/{name}")
            existing = None
        if needs_apply(child, existing):
            await api.apply(child)
            applied.append(f"{kind}/{name}")
    names = {_key(child) for child in wanted}
    for (kind, name), child in present.items():
        if (kind, name) not in names and owner_uid(child) == owner:
            await api.delete(kind, child["metadata"]["namespace"], name)
            deleted.append(f"{kind}/{name}")
    return ChildrenChanges(tuple(applied), tuple(deleted))


def _is_left_over(wanted: Manifest, existing: Manifest) -> bool:
    """Whether it belonged to an InferenceService of the same name, which is gone: there is another of that name now."""
    ours, theirs = _controller(wanted), _controller(existing)
    return bool(ours and theirs and (ours["kind"], ours["name"]) == (theirs["kind"], theirs["name"]))


def _conflict(wanted: Manifest) -> str:
    kind, metadata = wanted["kind"], wanted["metadata"]
    return (
        f"{kind} {metadata['name']} exists in namespace {metadata['namespace']} and does not belong to this"
        " InferenceService: delete or rename it, or give the InferenceService another name"
    )


def owner_uid(child: Manifest) -> str | None:
    """The uid of the object that controls this one; None when nothing does."""
    controller = _controller(child)
    return controller["uid"] if controller else None


def _controller(child: Manifest) -> dict[str, str] | None:
    """The owner reference of the object that controls this one."""
    return next((owner for owner in child["metadata"].get("ownerReferences", ()) if owner.get("controller")), None)


def _key(child: Manifest) -> Key:
    return child["kind"], child["metadata"]["name"]
