"""Signatures on admin calls: the token is never sent, and only the intended pod can answer.

    Authorization: Inflight-HMAC-SHA256 pod=UID,time=SECONDS,signature=HEX

The signature is the HMAC-SHA256 (RFC 2104) of method, path, pod uid, time and the body's SHA-256, one a line, under the
service's admin token. The answer carries `Inflight-Proof`, the HMAC of the signature: its sender has the token and is
the addressed pod, even if another pod has taken over the address.
"""

from __future__ import annotations

import hashlib
import hmac

SCHEME = "Inflight-HMAC-SHA256"
PROOF_HEADER = "Inflight-Proof"


def signature(token: str, method: str, path: str, pod_uid: str, time: int, body: bytes) -> str:
    """Lower-case hex.

    Args:
        time: seconds since the epoch; an engine rejects times more than 300 s from its own clock.
    """
    message = "\n".join([method, path, pod_uid, str(time), hashlib.sha256(body).hexdigest()])
    return hmac.new(token.encode(), message.encode(), hashlib.sha256).hexdigest()


def authorization(pod_uid: str, time: int, signed: str) -> str:
    """Value of the Authorization header."""
    return f"{SCHEME} pod={pod_uid},time={time},signature={signed}"


def is_proof(token: str, signed: str, given: str) -> bool:
    """Whether `given` is the proof that belongs to a call's signature."""
    expected = hmac.new(token.encode(), f"proof\n{signed}".encode(), hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected.encode(), given.encode())
