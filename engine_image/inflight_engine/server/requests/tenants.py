"""Tenant of a request: a header set by a gateway, trusted unsigned or by its signature."""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path

from starlette.datastructures import Headers

from inflight_engine.server.errors import ApiError, bad_request

TENANT_HEADER = "X-Inflight-Tenant"
SIGNATURE_HEADER = "X-Inflight-Tenant-Signature"
"""`v1=` and the hexadecimal HMAC-SHA256 of the tenant, a line feed and the request id, keyed with the tenant key."""
MAX_TENANT_LENGTH = 128


class TenantKey:
    """The key in a file, read again when the file changes: a Secret that is mounted gets new content in place."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_as: tuple[int, int, int] | None = None
        self._key = b""

    def current(self) -> bytes:
        """The present key.

        Raises:
            ApiError: 503, the file cannot be read, or is empty.
        """
        try:
            status = self._path.stat()
            read_as = status.st_ino, status.st_mtime_ns, status.st_size
            if read_as != self._read_as:
                self._key, self._read_as = self._path.read_bytes().strip(), read_as
        except OSError as error:
            raise _no_key(f"cannot be read: {error.strerror}") from None
        if not self._key:
            raise _no_key("is empty")
        return self._key


class Tenants:
    """Determines the tenant of a request.

    Args:
        trusted: `TENANT_HEADER` is accepted unsigned.
        key_file: it is accepted if `SIGNATURE_HEADER` signs it with the key in this file. With neither it is ignored
            and all requests belong to one tenant, since clients could set any name.
    """

    def __init__(self, *, trusted: bool = False, key_file: Path | None = None) -> None:
        self._key = None if key_file is None else TenantKey(key_file)
        self.known = trusted or key_file is not None
        """Requests can be of different tenants."""

    def of(self, headers: Headers, request_id: str) -> str:
        """The tenant of a request; empty without one.

        Raises:
            ApiError: 400, the name is not one word of ASCII; 401, its signature is missing or wrong.
        """
        given = headers.getlist(TENANT_HEADER) if self.known else []
        if not given:
            return ""
        tenant = given[0]
        if len(given) > 1 or re.fullmatch(rf"[!-~]{{1,{MAX_TENANT_LENGTH}}}", tenant) is None:
            raise bad_request(
                f"{TENANT_HEADER}: must be one header of 1 to {MAX_TENANT_LENGTH} visible ASCII characters",
                TENANT_HEADER,
            )
        if self._key is not None:
            expected = signature(self._key.current(), tenant, request_id)
            signed = headers.getlist(SIGNATURE_HEADER)
            if len(signed) != 1 or not hmac.compare_digest(signed[0].encode("latin-1"), expected.encode()):
                raise ApiError(
                    401,
                    f"{TENANT_HEADER}: needs a valid {SIGNATURE_HEADER}; only the gateway can sign it",
                    TENANT_HEADER,
                    "invalid_tenant_signature",
                )
        return tenant


def signature(key: bytes, tenant: str, request_id: str) -> str:
    """The value of `SIGNATURE_HEADER`."""
    return "v1=" + hmac.new(key, f"{tenant}\n{request_id}".encode(), hashlib.sha256).hexdigest()


def _no_key(why: str) -> ApiError:
    return ApiError(503, f"the file of --tenant-key-file {why}", code="no_tenant_key", retry_after=1.0)
