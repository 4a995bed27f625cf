"""The engine's side of a signed admin call: authentication of the caller and of the engine."""

from __future__ import annotations

import hmac

from inflight_base.signing import SCHEME, proof, signature

MAX_CLOCK_DIFFERENCE = 300


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
    if not hmac.compare_digest(signed, signature(token, method, path, pod_uid, int(time), body)):
        return None
    return proof(token, signed)
