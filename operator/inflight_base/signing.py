"""HMAC-SHA256 (RFC 2104) between operator, gateway and engines: derived keys, tenants of requests, and messages between
gateway and operator. Signatures of admin calls: `inflight_contract.admin_signature`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from inflight_base.manifest.keys import ServiceKey


def derived(key: bytes, message: str) -> str:
    """A key for one purpose: 43 characters, base64url without padding."""
    return base64.urlsafe_b64encode(hmac.digest(key, message.encode(), "sha256")).rstrip(b"=").decode()


def tenant_key(gateway_key: bytes, service: ServiceKey, uid: str) -> str:
    """The key with which a service's engines verify tenants. The gateway's key stays in gateway and operator: an
    engine's key is useless at another service."""
    return derived(gateway_key, f"tenant/{service}/{uid}")


MAX_AGE_S: Final = 300.0
"""Most seconds between the time in a signature and the verifier's clock, as of admin calls: nodes' clocks may differ by
that much."""

_SIGNED = re.compile(r"v2=([0-9]{1,12}):([0-9a-f]{64}(?:,[0-9a-f]{64}){0,3})")


def signed(keys: Sequence[bytes], message: bytes, now: float) -> str:
    """Returns `v2=TIME:HEX[,HEX]`: for each key the HMAC of TIME, a line feed and the message.

    Signer and verifier each have a current key and, after a change, the previous one. They see a change at different
    times; with both keys on both sides a signature is valid throughout.

    Args:
        now: Unix time; TIME is its whole seconds.
    """
    at = str(int(now))
    timed = at.encode() + b"\n" + message
    return f"v2={at}:" + ",".join([_hmac(key, timed) for key in keys])


def is_signed(keys: Sequence[bytes], message: bytes, value: str, now: float) -> bool:
    """Returns whether one of these keys made one of the signatures in `value`, within `MAX_AGE_S` of `now`."""
    found = _SIGNED.fullmatch(value)
    if found is None or abs(now - int(found[1])) > MAX_AGE_S:
        return False
    timed, given = found[1].encode() + b"\n" + message, found[2].split(",")
    return any(hmac.compare_digest(_hmac(key, timed), one) for key in keys for one in given)


PEER_SIGNATURE = "x-inflight-peer-signature"
"""Header of the operator's calls to gateway pods."""


def get_message(target: str) -> bytes:
    """The message to sign for a GET. Args: target: path and query as sent."""
    return f"GET {target}\n".encode()


def tenant_message(tenant: str, request_id: str, progress: str = "") -> bytes:
    """The message that the gateway signs for an engine with the service's tenant keys.

    Args:
        tenant: may be empty.
        progress: value of the header X-Inflight-Progress; empty without one.
    """
    return "\n".join((tenant, request_id, *filter(None, (progress,)))).encode()


def tenant_signature_v1(key: bytes, message: bytes) -> str:
    """Signature for engines of release 0.2, which know one key and no time."""
    return "v1=" + _hmac(key, message)


def _hmac(key: bytes, message: bytes) -> str:
    begun, ending = _states(key)
    inner, outer = begun.copy(), ending.copy()
    inner.update(message)
    outer.update(inner.digest())
    return outer.hexdigest()


@lru_cache(maxsize=4096)
def _states(key: bytes) -> tuple[hashlib._Hash, hashlib._Hash]:
    """SHA-256 of the inner and outer padded key (RFC 2104): a gateway signs each request, and copies of these take half
    the time of `hmac.digest`."""
    padded = (key if len(key) <= 64 else hashlib.sha256(key).digest()).ljust(64, b"\0")
    return hashlib.sha256(bytes(x ^ 0x36 for x in padded)), hashlib.sha256(bytes(x ^ 0x5C for x in padded))
