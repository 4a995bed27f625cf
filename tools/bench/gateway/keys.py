"""API keys of the tenants benchmark."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from typing import Any

SECRET = "keys"


def new_key() -> str:
    return "ifk_" + secrets.token_urlsafe(32)


def secret(keys: Mapping[str, str]) -> dict[str, Any]:
    """The Secret, as the gateway's static file has it. Args: keys: key -> tenant."""
    entries = {
        f"{tenant}-{number}": json.dumps({"tenant": tenant, "sha256": hashlib.sha256(key.encode()).hexdigest()})
        for number, (key, tenant) in enumerate(keys.items())
    }
    return {"name": SECRET, "data": entries}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}
