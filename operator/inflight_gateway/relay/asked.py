"""The fields that the relay reads in the body of a generation request."""

from __future__ import annotations

from typing import Any

import msgspec

PATHS = frozenset((b"/v1/chat/completions", b"/v1/completions", b"/v1/generate"))
"""POST there asks for a generation."""


class Asked(msgspec.Struct, frozen=True):
    """Attributes: stream: as sent by the client; the engine validates it. inflight_continuation: the relay's own field,
    which a client may not set."""

    stream: Any = None
    inflight_continuation: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET

    @property
    def forged(self) -> bool:
        return self.inflight_continuation is not msgspec.UNSET


_decoder = msgspec.json.Decoder(Asked)


def read(body: bytes) -> Asked | None:
    """None: `body` is no JSON object, or one that is nested too deeply; the engine returns the error."""
    try:
        return _decoder.decode(body)
    except (ValueError, RecursionError):
        return None
