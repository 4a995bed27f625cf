"""Two InferenceServices that are one to their engines: a service, and its prefill set (`spec.disaggregation`). Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inflight_base.manifest import Manifest
from inflight_base.manifest.keys import ServiceKey
from inflight_base.manifest.names import GROUP, KIND, child_names
from inflight_operator.api.gateway import Auth, Gateway
from inflight_operator.api.types import InferenceService


@dataclass(frozen=True, slots=True)
class PrefillOf:
    """The service that a prefill set computes prompts for.

    Attributes:
        uid: its tokens and keys are those of the prefill set.
        keyed: its engines take signed requests only (`spec.gateway.auth`).
    """

    key: ServiceKey
    uid: str
    keyed: bool


def prefill_of(body: Manifest, service: Callable[[ServiceKey], Manifest | None]) -> PrefillOf | None:
    """Returns the service that an InferenceService computes prompts for; None for one that is no prefill set.

    Whoever may create InferenceServices writes what their owner references say. So the owner must exist in the same
    namespace with this uid, ask for prefill engines, and have a name that the operator gives to no other prefill set.

    Args:
        body: the InferenceService.
        service: returns the InferenceService of a name, if it exists.
    """
    metadata = body["metadata"]
    owner = next((one for one in metadata.get("ownerReferences") or () if one.get("controller")), None)
    if owner is None or (owner["kind"], owner["apiVersion"].partition("/")[0]) != (KIND, GROUP):
        return None
    key = ServiceKey(metadata["namespace"], owner["name"])
    parent = service(key)
    if parent is None or parent["metadata"]["uid"] != owner["uid"] or child_names(key.name).prefill != metadata["name"]:
        return None
    spec = parent.get("spec") or {}
    if (spec.get("disaggregation") or {}).get("mode", "Off") == "Off":
        return None
    return PrefillOf(key, owner["uid"], (spec.get("gateway") or {}).get("auth") is not None)


def as_one(service: InferenceService, of: PrefillOf) -> InferenceService:
    """Returns the prefill set as the gateway uses it: behind the gateway, with the keys of the service's engines."""
    gateway = Gateway(enabled=True, auth=Auth() if of.keyed else None)
    return service.model_copy(update={"spec": service.spec.model_copy(update={"gateway": gateway})})
