"""HMAC-SHA256 (RFC 2104) between operator, gateway and engines: derived keys, tenants of requests, and admin calls.

An admin call never sends its token, and only the intended pod can answer:

    Authorization: Inflight-HMAC-SHA256 pod=UID,time=SECONDS,signature=HEX

The signature is the HMAC of method, path, pod uid, time and the body's SHA-256, one a line, under the service's admin
token. The answer carries `Inflight-Proof`, the HMAC of the signature: its sender has the token and is the addressed
pod, even if another pod has taken over the address.
"""

from __future__ import annotations

import base64
import hashlib
import hmac

from inflight_base.manifest.keys import ServiceKey

SCHEME = "Inflight-HMAC-SHA256"
PROOF_HEADER = "Inflight-Proof"


def derived(key: bytes, message: str) -> str:
    """A key for one purpose: 43 characters, base64url without padding."""
    return base64.urlsafe_b64encode(hmac.digest(key, message.encode(), "sha256")).rstrip(b"=").decode()


def tenant_key(gateway_key: bytes, service: ServiceKey, uid: str) -> str:
    """The key with which a service's engines verify tenants. The gateway's key stays in gateway and operator: an
    engine's key is useless at another service."""
    return derived(gateway_key, f"tenant/{service}/{uid}")


def tenant_signature(key: str, tenant: str, request_id: str) -> str:
    """Proof for an engine that the gateway checked the tenant of a request. Args: key: from `tenant_key`."""
    return "v1=" + _hex(key, f"{tenant}\n{request_id}")


def signature(token: str, method: str, path: str, pod_uid: str, time: int, body: bytes) -> str:
    """The signature of an admin call, lower-case hex.

    Args:
        time: seconds since the epoch; an engine rejects times more than 300 s from its own clock.
    """
    return _hex(token, "\n".join([method, path, pod_uid, str(time), hashlib.sha256(body).hexdigest()]))


def authorization(pod_uid: str, time: int, signed: str) -> str:
    """Value of the Authorization header."""
    return f"{SCHEME} pod={pod_uid},time={time},signature={signed}"


def proof(token: str, signed: str) -> str:
    """Value of `PROOF_HEADER` in the answer to a call with this signature."""
    return _hex(token, f"proof\n{signed}")


def is_proof(token: str, signed: str, given: str) -> bool:
    """Returns whether `given` is the proof that belongs to a call's signature."""
    return hmac.compare_digest(proof(token, signed).encode(), given.encode())


def _hex(key: str, message: str) -> str:
    return hmac.digest(key.encode(), message.encode(), "sha256").hex()
