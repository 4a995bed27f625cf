"""The token for an engine's admin calls: made once for each service, then kept."""

from __future__ import annotations

import base64
import binascii
import secrets
from typing import Any

from inflight_operator.render.admin_token import TOKEN_KEY

_BYTES = 32


def admin_token(live_secret: dict[str, Any] | None) -> str:
    """The token in the live Secret, or a new one when there is none that can be read."""
    encoded = ((live_secret or {}).get("data") or {}).get(TOKEN_KEY, "")
    try:
        kept = base64.b64decode(encoded, validate=True).decode("ascii")
    except (binascii.Error, UnicodeDecodeError):
        kept = ""
    return kept or secrets.token_urlsafe(_BYTES)
