"""A signed call of another engine's admin port: see `inflight_contract.admin_signature`."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from inflight_contract import admin_signature, admin_token
from inflight_contract.model_blocks import SIGNATURE_HEADER


@dataclass(frozen=True, slots=True, repr=False)
class SignedAnswer:
    """An answer whose body is not read yet. It may come from anywhere, until it proves something."""

    http: http.client.HTTPResponse
    _token: bytes
    _signature: str

    def proves(self, content: str) -> bool:
        """Return whether the header of the answer shows that this content is from an engine with the admin token."""
        proof = admin_signature.content_proof(self._token, self._signature, content)
        return self.http.headers.get(SIGNATURE_HEADER) == proof


@contextmanager
def signed_call(
    pod: str, address: str, method: str, path: str, body: bytes = b"", *, seconds: float
) -> Iterator[SignedAnswer]:
    """Call, and close the connection after the block.

    Args:
        pod: uid. address: `IP:PORT`.
        seconds: in which the other engine answers, and sends more bytes.

    Raises:
        ApiError: there is no admin token.
        ValueError: the address is none.
        OSError, HTTPException: it does not answer.
    """
    token, now = admin_token.configured(), str(int(time.time()))
    signature = admin_signature.signature(token, method, path, pod, now, body)
    host, _, port = address.rpartition(":")
    with closing(http.client.HTTPConnection(host.strip("[]"), int(port), timeout=seconds)) as connection:
        headers = {"Authorization": admin_signature.authorization(pod, now, signature)}
        connection.request(method, path, body or None, headers)
        yield SignedAnswer(connection.getresponse(), token, signature)
