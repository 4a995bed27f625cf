"""Endpoints of the Service of a service's name, as the cluster has them."""

from __future__ import annotations

from dataclasses import dataclass

from inflight_base.manifest import Manifest
from inflight_base.manifest.keys import ServiceKey
from inflight_base.manifest.names import SLICE_OF_LABEL, child_names, pod_labels
from inflight_operator.observe.cache import ClusterCache


@dataclass(frozen=True, slots=True)
class FrontView:
    """Where clients of the service connect to.

    Attributes:
        elsewhere: the Service exists, and selects the engines or is an alias of another one.
        gateway_listed: slices of the operator list gateway pods for it.
        engines_listed: slices of Kubernetes list ready engines for it.
        routed: the Service exists by which the gateway finds the engines.
    """

    elsewhere: bool = False
    gateway_listed: bool = False
    engines_listed: bool = False
    routed: bool = False


NO_FRONT = FrontView()
"""View of a service without a Service."""


def front_view(cache: ClusterCache, key: ServiceKey, uid: str) -> FrontView:
    """Returns the view from the cached objects. Args: uid: of the service; objects of other owners do not count."""
    names = child_names(key.name)
    live = cache.child(key, "Service", names.main)
    spec = live["spec"] if live is not None and _is_owned(live, uid) else {}
    slices = (
        one
        for one in cache.children(key)
        if one["kind"] == "EndpointSlice" and one["metadata"]["labels"].get(SLICE_OF_LABEL) == names.main
    )
    return FrontView(
        elsewhere=spec.get("type") == "ExternalName" or spec.get("selector") == pod_labels(key.name),
        gateway_listed=any(one.get("endpoints") for one in slices),
        engines_listed=bool(cache.endpoints(key, names.main)),
        routed=cache.child(key, "Service", names.engines) is not None,
    )


def _is_owned(live: Manifest, uid: str) -> bool:
    return any(one.get("controller") and one["uid"] == uid for one in live["metadata"].get("ownerReferences") or ())
