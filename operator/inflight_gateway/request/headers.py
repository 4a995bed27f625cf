"""Names of the headers between clients, Envoy, relays, other gateways and engines.

Clients cannot set them, but for `REQUEST_ID`: Envoy removes `x-inflight-*` and `DESTINATION` from their requests.
"""

from __future__ import annotations

from inflight_base.http.heads import HOP_BY_HOP, Headers, end_to_end
from inflight_contract.channels import CHANNEL_HEADER
from inflight_contract.kv_blocks import HAND_OVER_HEADER

REQUEST_ID = "x-request-id"
"""Request id that the client chose, so not unique: for engines, logs and clients only."""

DESTINATION = "x-gateway-destination-endpoint"
"""Endpoints in the order to try them, `IP:PORT,IP:PORT`: the Gateway API Inference Extension's protocol."""

SUBSET = "x-gateway-destination-endpoint-subset"
"""Metadata of another gateway: the endpoints that may be picked (Gateway API Inference Extension)."""

PROGRESS = "x-inflight-progress"
"""To the engine, `1`: answer with progress frames, see docs/engine.md."""

HAND_OVER = HAND_OVER_HEADER.lower()
"""To the engine, `1`: the answer goes on at another engine after the first token."""

TENANT = "x-inflight-tenant"
SIGNATURE = "x-inflight-signature"
"""Signature of `signing.tenant_message` by the service's tenant keys, see `signing.signed`."""
TENANT_SIGNATURE_V1 = "x-inflight-tenant-signature"
"""The signature for engines of release 0.2: without a time, by one key."""

CHANNEL = CHANNEL_HEADER.lower()
"""Between relay and engine: the channel of a stream's events, see docs/engine.md."""

JWT_TENANT = "x-inflight-jwt-tenant"
"""From Envoy to the relay: the tenant in a JSON Web Token that Envoy has verified. Envoy then removes Authorization."""

INTERNAL = (DESTINATION, PROGRESS, HAND_OVER, TENANT, SIGNATURE, TENANT_SIGNATURE_V1, CHANNEL, JWT_TENANT)

_NOT_PASSED_ON = frozenset((b"content-length", *(name.encode() for name in INTERNAL)))

_OWN = _NOT_PASSED_ON | HOP_BY_HOP

Fields = list[tuple[bytes, bytes, bool]]
"""Head of an HTTP/2 message: names, values, and whether these are secret."""


def split(fields: Fields) -> tuple[dict[bytes, bytes], Headers]:
    """Returns what the head of a request from Envoy says to the relay, and the headers for an engine."""
    own: dict[bytes, bytes] = {}
    headers = []
    for name, value, _ in fields:
        if name in _OWN or name[:1] == b":":
            own.setdefault(name, value)
        else:
            headers.append((name, value))
    if b":authority" in own:
        headers.append((b"host", own[b":authority"]))
    return own, headers


def of_answer(headers: Headers) -> Headers:
    """Returns the headers of an engine's response that clients get: end-to-end ones, without internal ones and the
    length. Which pages of other origins may read it is the gateway's to say: vLLM permits all."""
    return [
        header
        for header in end_to_end(headers)
        if header[0] not in _NOT_PASSED_ON and not header[0].startswith(b"access-control-")
    ]
