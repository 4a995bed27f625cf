"""Tenant of a request: a header set by a gateway, trusted unsigned or by its signature."""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from inflight_contract.errors import ApiError, bad_request

TENANT_HEADER = "X-Inflight-Tenant"
SIGNATURE_HEADER = "X-Inflight-Signature"
"""`v2=TIME:HEX[,HEX]`: Unix seconds, and for each of the gateway's keys the hexadecimal HMAC-SHA256 of TIME, the
tenant, the request id and, where there is one, the value of `PROGRESS_HEADER`, each on a line. The tenant of a request
without one is empty."""
PROGRESS_HEADER = "X-Inflight-Progress"
"""In a request, `1` asks for progress frames, and lets an answer go on, where it is signed before new requests; in a
response, `1` says that it has them."""
MAX_TENANT_LENGTH = 128

MAX_AGE_S = 300.0
"""Most seconds between a signature's time and this machine's clock, as for admin calls."""

UNSIGNED = b"none"
"""Content of a key file for requests without signatures: the gateway checks no keys for the service."""
PROGRESS_KEY_FILE = "{}-progress"
"""File beside a key file with that content: the key by which the gateway signs continued answers all the same."""

_SIGNATURE = re.compile(rb"v2=([0-9]{1,12}):([0-9a-f]{64}(?:,[0-9a-f]{64}){0,3})")


class HeaderLists(Protocol):
    """Headers of a request; Starlette's are."""

    def getlist(self, key: str) -> list[str]:
        """Return all values of a header, in order."""


class TenantKeys:
    """The keys in a file and beside it, read again when the file changes: a Secret that is mounted gets new content in
    place, all of its files at once. Args: path: file of the key; FILE-previous may have the key before it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_as: tuple[int, int, int] | None = None
        self._keys: tuple[bytes, ...] = ()

    def current(self) -> tuple[bytes, ...]:
        """The present keys; none for `UNSIGNED`.

        Raises:
            ApiError: 503, the file cannot be read, or is empty.
        """
        try:
            status = self._path.stat()
            read_as = status.st_ino, status.st_mtime_ns, status.st_size
            if read_as != self._read_as:
                self._keys, self._read_as = self._read(), read_as
        except OSError as error:
            raise _no_key(f"cannot be read: {error.strerror}") from None
        if not self._keys:
            raise _no_key("is empty")
        return () if self._keys[0] == UNSIGNED else self._keys

    def _read(self) -> tuple[bytes, ...]:
        key = self._path.read_bytes().strip()
        try:
            previous = self._path.with_name(f"{self._path.name}-previous").read_bytes().strip()
        except FileNotFoundError:
            previous = b""
        return tuple(each for each in (key, previous) if each) if key else ()


class Tenants:
    """Determines the tenant of a request.

    Args:
        trusted: `TENANT_HEADER` is accepted unsigned.
        key_file: requests are accepted if `SIGNATURE_HEADER` signs them with a key of this file. With neither the
            header is ignored and all requests belong to one tenant, since clients could set any name.
        wall: Unix time.
    """

    def __init__(
        self, *, trusted: bool = False, key_file: Path | None = None, wall: Callable[[], float] = time.time
    ) -> None:
        self._keys = None if key_file is None else TenantKeys(key_file)
        self._progress_keys = (
            None if key_file is None else TenantKeys(key_file.with_name(PROGRESS_KEY_FILE.format(key_file.name)))
        )
        self._wall = wall
        self.known = trusted or key_file is not None
        """Requests can be of different tenants."""

    def of(self, headers: HeaderLists, request_id: str) -> str:
        """The tenant of a request; empty without one.

        Raises:
            ApiError: 400, the name is not one word of ASCII; 401, the request is not signed, or wrongly; 503, there is
                no key to verify it with.
        """
        keys = () if self._keys is None else self._keys.current()
        if not self.known or (self._keys is not None and not keys):
            return ""
        given = headers.getlist(TENANT_HEADER)
        tenant = given[0] if given else ""
        if len(given) > 1 or (given and re.fullmatch(rf"[!-~]{{1,{MAX_TENANT_LENGTH}}}", tenant) is None):
            raise bad_request(
                f"{TENANT_HEADER}: must be one header of 1 to {MAX_TENANT_LENGTH} visible ASCII characters",
                TENANT_HEADER,
            )
        if keys:
            self._check(keys, headers, tenant, request_id)
        return tenant

    def believes_progress(self, headers: HeaderLists, request_id: str) -> bool:
        """Tell whether a gateway has signed that the request continues an answer. Without a key nobody can: any client
        may send `PROGRESS_HEADER`. Call it after `of`."""
        if self._keys is None or self._progress_keys is None:
            return False
        try:
            keys = self._keys.current() or self._progress_keys.current()
            self._check(keys, headers, "".join(headers.getlist(TENANT_HEADER)), request_id)
        except ApiError:
            return False
        return True

    def _check(self, keys: Sequence[bytes], headers: HeaderLists, tenant: str, request_id: str) -> None:
        message = "\n".join([tenant, request_id, *headers.getlist(PROGRESS_HEADER)]).encode()
        given = headers.getlist(SIGNATURE_HEADER)
        found = _SIGNATURE.fullmatch(given[0].encode("latin-1")) if len(given) == 1 else None
        if found is None or not any(
            hmac.compare_digest(hmac.digest(key, found[1] + b"\n" + message, "sha256").hex().encode(), one)
            for key in keys
            for one in found[2].split(b",")
        ):
            raise _unsigned("requests to this engine need a valid one; only the gateway can sign them")
        apart = int(found[1]) - self._wall()
        if abs(apart) > MAX_AGE_S:
            raise _unsigned(f"its time is {apart:+.0f} s from this engine's clock, {MAX_AGE_S:.0f} s are allowed")


def _unsigned(why: str) -> ApiError:
    return ApiError(401, f"{SIGNATURE_HEADER}: {why}", SIGNATURE_HEADER, "invalid_tenant_signature")


def _no_key(why: str) -> ApiError:
    return ApiError(503, f"the file of the tenant keys {why}", code="no_tenant_key", retry_after=1.0)
