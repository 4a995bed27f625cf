"""Signed admin calls: the caller proves possession of the admin token without sending it, and so does the response.

The protocol, on plain HTTP to an address that may by now belong to another pod:

- The call has the header `Authorization: Inflight-HMAC-SHA256 pod=UID,time=TIME,signature=SIGNATURE`.
  UID is the `metadata.uid` of the intended pod, TIME the caller's clock in whole seconds since 1970, and SIGNATURE
  the lower-case hex HMAC-SHA256 (RFC 2104), with the token as its key, of these five lines in UTF-8, joined by "\\n"
  without one at the end: the method, the path without query, UID, TIME, and the lower-case hex SHA-256 of the body.
- The engine accepts the call if UID is its own (`$INFLIGHT_POD_UID`), its clock is within `MAX_SKEW_SECONDS` of TIME
  and the signature matches.
- The response to an accepted call, including errors, has the header `Inflight-Proof`: the lower-case hex
  HMAC-SHA256, with the token as its key, of "proof\\n" and SIGNATURE. Only the intended pod can create it.
- A response whose content matters as well has the HMAC of "content\\n", SIGNATURE, "\\n" and that content.

A recorded call can be replayed to the same pod until its time expires. Changes of limits carry a revision, and older
revisions are rejected.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass

from inflight_contract.errors import ApiError

SCHEME = "Inflight-HMAC-SHA256"
PROOF_HEADER = "Inflight-Proof"
MAX_SKEW_SECONDS = 300

_CREDENTIALS = re.compile(r"pod=([^,\s]{1,253}),time=([0-9]{1,12}),signature=([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Credentials:
    """Content of the `Authorization` header of a signed call. `time`: as it was signed, decimal digits."""

    pod: str
    time: str
    signature: str


def parse(parameters: str) -> Credentials:
    """`parameters`: the part after the scheme.

    Raises:
        ApiError: 401, they are not of that form.
    """
    match = _CREDENTIALS.fullmatch(parameters.strip())
    if match is None:
        raise _refused(f"the header has to be `Authorization: {SCHEME} pod=UID,time=SECONDS,signature=HEX`")
    return Credentials(*match.groups())


def check_target(credentials: Credentials, own_pod: str, now: float) -> None:
    """Checks that the call is for this pod and current; needs no body.

    Args:
        own_pod: the uid of this pod; empty if unknown.
        now: seconds since 1970.

    Raises:
        ApiError: 421 if the call is for another pod, 401 otherwise.
    """
    if not own_pod:
        raise _refused("this engine does not know its pod ($INFLIGHT_POD_UID), so it takes no signed calls")
    if credentials.pod != own_pod:
        raise ApiError(421, "this call is signed for another pod", code="other_pod")
    skew = abs(now - int(credentials.time))
    if skew > MAX_SKEW_SECONDS:
        raise _refused(f"the call was signed {skew:.0f} s from this pod's clock, more than {MAX_SKEW_SECONDS} s")


def check_signature(credentials: Credentials, token: bytes, method: str, path: str, body: bytes) -> None:
    """Check that the caller has the token.

    Raises:
        ApiError: 401, the signature does not match.
    """
    expected = signature(token, method, path, credentials.pod, credentials.time, body)
    if not hmac.compare_digest(expected, credentials.signature):
        raise _refused("the signature does not match this server's admin token and the call")


def signature(token: bytes, method: str, path: str, pod: str, time: str, body: bytes) -> str:
    """Lower-case hex. Args: time: seconds since 1970, decimal digits."""
    lines = (method, path, pod, time, hashlib.sha256(body).hexdigest())
    return _mac(token, "\n".join(lines))


def proof(token: bytes, signature: str) -> str:
    """Lower-case hex, of a call with this signature."""
    return _mac(token, f"proof\n{signature}")


def content_proof(token: bytes, signature: str, content: str) -> str:
    """Lower-case hex, for `content` in the response to a call with this signature."""
    return _mac(token, f"content\n{signature}\n{content}")


def authorization(pod: str, time: str, signature: str) -> str:
    """Value of the Authorization header of a call."""
    return f"{SCHEME} pod={pod},time={time},signature={signature}"


def is_proof(token: bytes, signature: str, given: str) -> bool:
    """Return whether `given` is the proof that belongs to a call's signature. HTTP clients give bytes of a header that
    are not UTF-8 as surrogates."""
    return hmac.compare_digest(proof(token, signature).encode(), given.encode(errors="surrogatepass"))


def _mac(token: bytes, message: str) -> str:
    return hmac.new(token, message.encode(), hashlib.sha256).hexdigest()


def _refused(why: str) -> ApiError:
    return ApiError(401, why, code="invalid_signature", headers={"www-authenticate": SCHEME})
