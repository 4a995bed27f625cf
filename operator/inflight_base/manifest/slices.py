"""Endpoints in EndpointSlices (discovery.k8s.io/v1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from inflight_base.manifest.names import GATEWAY_HTTP_PORT


class SliceEndpoint(NamedTuple):
    """An endpoint of an EndpointSlice.

    Attributes:
        pod, uid: name and UID of its pod; empty without one.
        ready: true for all pods of a Service that publishes addresses that are not ready.
        serving: the pod's own readiness.
    """

    ip: str
    pod: str
    uid: str
    ready: bool
    serving: bool
    terminating: bool


def endpoints(manifest: Mapping[str, Any]) -> Iterator[SliceEndpoint]:
    """The endpoints of a slice. By the API, an unset `ready` counts as true, and an unset `serving` as `ready`."""
    for entry in manifest.get("endpoints") or ():
        conditions, target = entry.get("conditions") or {}, entry.get("targetRef") or {}
        ready = conditions.get("ready") is not False
        serving = ready if conditions.get("serving") is None else conditions["serving"]
        pod, uid = target.get("name") or "", target.get("uid") or ""
        if entry.get("addresses"):
            terminating = conditions.get("terminating") is True
            yield SliceEndpoint(entry["addresses"][0], pod, uid, ready, serving, terminating)


def address_of(ip: str, port: int) -> str:
    """Returns `IP:PORT`, or `[IP]:PORT` of an IPv6 address."""
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """An address of a gateway pod that takes new requests. Attributes: port: of the OpenAI API."""

    address: str
    port: int = GATEWAY_HTTP_PORT

    @property
    def family(self) -> str:
        """The addressType of its EndpointSlice."""
        return "IPv6" if ":" in self.address else "IPv4"
