"""The head of another gateway's request."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping

from inflight_gateway.request.headers import INTERNAL, REQUEST_ID, SUBSET

_READABLE = re.compile(r"[!-~]{1,128}")
"""Ids that engines accept; they replace others."""

NOT_FROM_CLIENTS = frozenset((*INTERNAL, SUBSET))
"""Headers that are ignored: no proxy before the picker removes them, so a client may have sent them."""


class Head:
    """A request's head as Envoy sends it: names in lower case; of a repeated name, the last value.

    Attributes:
        request_id: the gateway's own, unique. external_id: X-Request-Id, for engines, logs and clients.
    """

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self.headers: Mapping[str, str] = {name: value for name, value in pairs if name not in NOT_FROM_CLIENTS}
        self.request_id = uuid.uuid4().hex
        sent = self.headers.get(REQUEST_ID, "")
        self.external_id = sent if _READABLE.fullmatch(sent) else self.request_id

    @property
    def host(self) -> str:
        return self.headers.get(":authority", "")

    @property
    def path(self) -> str:
        """The path as sent, with its query."""
        return self.headers.get(":path", "/")


def addresses(text: str) -> frozenset[str]:
    """Returns the addresses in a list `IP:PORT,IP:PORT`."""
    return frozenset(part.strip() for part in text.split(",") if part.strip())
