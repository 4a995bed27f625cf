"""The admin token: from the environment or a file, read on each use so that rotation needs no restart."""

from __future__ import annotations

import hmac
import os
import time
from pathlib import Path

from inflight_contract import admin_signature
from inflight_contract.errors import ApiError

VARIABLE = "INFLIGHT_ADMIN_TOKEN"
FILE_VARIABLE = "INFLIGHT_ADMIN_TOKEN_FILE"
POD_VARIABLE = "INFLIGHT_POD_UID"


def permit(authorization: str, method: str, path: str, body: bytes) -> str | None:
    """Check the token or signature of a call.

    Args:
        authorization: value of the header; empty without one.

    Returns:
        The proof to answer a signed call with; None for a call with the token itself.

    Raises:
        ApiError: 401 wrong credentials, 403 this server has no token, 421 the call is for another pod.
    """
    signed = signature_of(authorization)
    return None if signed is None else prove(signed, method, path, body)


def signature_of(authorization: str) -> admin_signature.Credentials | None:
    """Check the credentials of a call without its body, which a stranger may send without end.

    Returns:
        A signature for this pod that `prove` checks; None for a call with the token itself.

    Raises:
        ApiError: as `permit`.
    """
    token = configured()
    scheme, _, parameters = authorization.partition(" ")
    if scheme.lower() != admin_signature.SCHEME.lower():
        _check_bearer(scheme, parameters, token)
        return None
    signed = admin_signature.parse(parameters)
    admin_signature.check_target(signed, os.environ.get(POD_VARIABLE, ""), time.time())
    return signed


def prove(signed: admin_signature.Credentials, method: str, path: str, body: bytes) -> str:
    """Check the signature of a call, and return the proof to answer it with. Raises ApiError as `permit`."""
    token = configured()
    admin_signature.check_signature(signed, token, method, path, body)
    return admin_signature.proof(token, signed.signature)


def _check_bearer(scheme: str, given: str, token: bytes) -> None:
    # Compares bytes, in the header as sent: a token may not be valid text.
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.encode("latin-1").strip(), token):
        raise ApiError(
            401,
            "admin calls need the header `Authorization: Bearer TOKEN` with this server's admin token",
            code="invalid_admin_token",
            headers={"www-authenticate": "Bearer"},
        )


def configured() -> bytes:
    """The token.

    Raises:
        ApiError: 403, this server has no token.
    """
    token = os.fsencode(os.environ.get(VARIABLE, "")).strip()
    path = os.environ.get(FILE_VARIABLE)
    if not token and path:
        try:
            token = Path(path).read_bytes().strip()
        except OSError as error:
            raise ApiError(
                403, f"admin calls are off: the file named by ${FILE_VARIABLE} cannot be read: {error.strerror}"
            ) from None
    if not token:
        raise ApiError(
            403,
            f"admin calls are off: this server has no token; set ${VARIABLE}, or ${FILE_VARIABLE} to a file with one",
            code="admin_disabled",
        )
    return token
