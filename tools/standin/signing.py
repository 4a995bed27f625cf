"""The engine's side of a signed admin call: authentication of the caller and of the engine."""

from __future__ import annotations

import hashlib
import hmac

SCHEME = "Inflight-HMAC-SHA256"
MAX_CLOCK_DIFFERENCE = 300


def signature(token: str, method: str, path: str, pod_uid: str, time: str, body: bytes) -> str:
    """Lower-case hex HMAC-SHA256 over method, path, pod uid, time and the body's SHA-256, a line each."""
    message = "\n".join([method, path, pod_uid, time, hashlib.sha256(body).hexdigest()])
    return _hmac(token, message)


def proof(token: str, of_signature: str) -> str:
    """What only an engine that has the token can answer."""
    return _hmac(token, f"proof\n{of_signature}")


def checked(
    authorization: str, token: str, method: str, path: str, pod_uid: str, body: bytes, now: float
) -> str | None:
    """The header `Inflight-Proof` of the answer, empty for a call with the token itself; None refuses the call."""
    scheme, _, given = authorization.partition(" ")
    if scheme == "Bearer":
        return "" if hmac.compare_digest(given, token) else None
    if scheme != SCHEME:
        return None
    fields = dict(part.strip().partition("=")[::2] for part in given.split(","))
    time, signed = fields.get("time", ""), fields.get("signature", "")
    if fields.get("pod") != pod_uid or not time.isdigit() or abs(now - int(time)) > MAX_CLOCK_DIFFERENCE:
        return None
    if not hmac.compare_digest(signed, signature(token, method, path, pod_uid, time, body)):
        return None
    return proof(token, signed)


def _hmac(token: str, message: str) -> str:
    return hmac.new(token.encode(), message.encode(), hashlib.sha256).hexdigest()
