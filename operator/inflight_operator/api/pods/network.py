"""spec.networkPolicy: clients that may connect to the engines' serving port."""

from __future__ import annotations

import re
from ipaddress import ip_network
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from inflight_operator.api.base import SpecModel, rule, validation

Key = Annotated[str, Field(min_length=1, max_length=317)]
Value = Annotated[str, Field(max_length=63)]


class Expression(SpecModel):
    """Requirement on a label, as in `meta/v1` LabelSelectorRequirement."""

    key: Key = Field(description="Key of the label.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(description="Comparison of the label's value.")
    values: list[Value] | None = Field(
        default=None, max_length=64, description="Values for In and NotIn; the others have none."
    )


class Selector(SpecModel):
    """Selection by labels, as in `meta/v1` LabelSelector; an empty one selects all."""

    match_labels: dict[str, Value] | None = Field(
        default=None, max_length=32, description="Labels, each with the value that it must have."
    )
    match_expressions: list[Expression] | None = Field(
        default=None, max_length=16, description="Further requirements, all of which must hold."
    )


Cidr = Annotated[str, Field(max_length=64, json_schema_extra={"format": "cidr"})]


class IPBlock(SpecModel):
    """Addresses, as in `networking.k8s.io/v1` IPBlock."""

    # Functions of CEL for blocks of addresses need Kubernetes 1.31; with this rule, only a narrower block elsewhere is
    # left to the check of the NetworkPolicy.
    model_config = ConfigDict(
        json_schema_extra=validation(
            "!has(self.except) || self.except.all(e, e.contains(':') == self.cidr.contains(':')"
            " && int(e.split('/')[1]) > int(self.cidr.split('/')[1]))",
            "networkPolicy.from ipBlock.except must have parts of ipBlock.cidr",
        )
    )

    cidr: Cidr = Field(description="Addresses that may connect, such as 10.0.0.0/8.")
    except_: list[Cidr] | None = Field(
        default=None,
        validation_alias="except",
        serialization_alias="except",
        max_length=64,
        description="Addresses in cidr that may not connect.",
    )


class Peer(SpecModel):
    """Clients, as in `networking.k8s.io/v1` NetworkPolicyPeer: selected pods, or a block of addresses."""

    model_config = ConfigDict(
        json_schema_extra=validation(
            "has(self.ipBlock) != (has(self.podSelector) || has(self.namespaceSelector))",
            "networkPolicy.from needs podSelector, namespaceSelector or both, or else ipBlock alone",
        )
    )

    pod_selector: Selector | None = Field(
        default=None,
        description="Pods of the service's namespace, or of the namespaces that namespaceSelector selects.",
    )
    namespace_selector: Selector | None = Field(
        default=None, description="Namespaces, with all their pods unless podSelector is set."
    )
    ip_block: IPBlock | None = Field(default=None, description="Addresses outside the cluster.")


class NetworkPolicy(SpecModel):
    """Clients that may connect to the pods."""

    from_: list[Peer] | None = Field(
        default=None,
        validation_alias="from",
        serialization_alias="from",
        max_length=32,
        description="Clients that may connect to the serving port; an empty list names none. engine.adminPeers of the"
        " chart may too, the gateway if the service is behind it, and the operator where it reads metrics on that port."
        " Unset: engine.clientPeers of the chart, without which the pods of the service's namespace may.",
    )


_NAME = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY = rf"(?:[a-z0-9](?:[-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_NAME}"


def peer_problem(peer: Peer) -> str:
    """Returns why the API server would refuse a peer; empty if it would not."""
    selectors = {"podSelector": peer.pod_selector, "namespaceSelector": peer.namespace_selector}
    if (peer.ip_block is None) == all(one is None for one in selectors.values()):
        return "it needs podSelector, namespaceSelector or both, or else ipBlock alone"
    problems = [f"{name}: {found}" for name, one in selectors.items() if one and (found := _selector_problem(one))]
    if peer.ip_block is not None and (found := _block_problem(peer.ip_block)):
        problems.append(f"ipBlock: {found}")
    return problems[0] if problems else ""


def _selector_problem(selector: Selector) -> str:
    labels, expressions = selector.match_labels or {}, selector.match_expressions or []
    for one in expressions:
        if (one.operator in ("In", "NotIn")) != bool(one.values):
            return f"{one.key}: In and NotIn need values, Exists and DoesNotExist have none"
    for key in (*labels, *(one.key for one in expressions)):
        if not re.fullmatch(_KEY, key):
            return f"{key!r} is not the key of a label"
    for value in (*labels.values(), *(value for one in expressions for value in one.values or ())):
        if value and not re.fullmatch(_NAME, value):
            return f"{value!r} is not the value of a label"
    return ""


def _block_problem(block: IPBlock) -> str:
    networks = []
    for cidr in (block.cidr, *(block.except_ or ())):
        try:
            if not re.search(r"/[0-9]{1,3}$", cidr):
                raise ValueError(cidr)
            networks.append(ip_network(cidr, strict=False))
        except ValueError:
            return f"{cidr!r} is not a block of addresses such as 10.0.0.0/8"
    whole, *parts = networks
    for part in parts:
        inside = part.version == whole.version and part.network_address in whole
        if not (inside and part.prefixlen > whole.prefixlen):
            return f"except has {part}, which is not a part of {whole}"
    return ""


def peers(policy: NetworkPolicy) -> list[dict[str, Any]] | None:
    """Returns the clients as NetworkPolicyPeers; None without a list."""
    if policy.from_ is None:
        return None
    return [peer.model_dump(mode="json", by_alias=True, exclude_none=True) for peer in policy.from_]


NETWORK_RULE = rule(
    "!has(self.networkPolicy) || !has(self.networkPolicy.from) || !has(self.gateway.auth)",
    "networkPolicy.from and gateway.auth exclude each other: with gateway.auth only the gateway may connect, which"
    " checks API keys, and gateway.clientPeers of the chart limits its clients",
    fieldPath=".networkPolicy",
)
"""Rule of the spec, which reads fields of two parts."""
