"""Entries of a Secret with API keys: the plugin writes them, the gateway checks keys against them.

Each entry is one key: the entry's name is the key id, its value a JSON object
`{"tenant": "acme", "sha256": "HEX of the key", "expires": "RFC 3339"}`, `expires` optional. Keys are 32 random bytes,
so an unsalted hash is not weaker than a salted one: there is no dictionary to try (NIST SP 800-63B, section 5.1.1.2,
asks for salt because people choose passwords).
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import NamedTuple

TENANT_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")


class KeyEntry(NamedTuple):
    """An entry. Attributes: digest: SHA-256 of the key, 32 bytes. expires: None: never."""

    tenant: str
    digest: bytes
    expires: datetime | None


def read_entry(value: bytes) -> KeyEntry:
    """Reads an entry.

    Raises:
        ValueError: it is malformed; the message says why and never repeats the value.
    """
    try:
        body = json.loads(value)
    except (ValueError, RecursionError):
        raise ValueError("is no JSON") from None
    if not isinstance(body, dict):
        raise ValueError("is no JSON object")
    tenant, digest = body.get("tenant"), body.get("sha256")
    if not isinstance(tenant, str) or not TENANT_NAME.fullmatch(tenant):
        raise ValueError("`tenant` is no name of at most 63 letters, digits, `.`, `_` and `-`")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ValueError("`sha256` is not 64 hexadecimal digits")
    return KeyEntry(tenant, bytes.fromhex(digest), _expires(body.get("expires")))


def _expires(text: object) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        moment = None
    # A key with an unreadable expiry must not be valid forever, and local time would depend on the gateway's node.
    if moment is None or moment.tzinfo is None:
        raise ValueError("`expires` is no RFC 3339 time with a time zone")
    return moment
