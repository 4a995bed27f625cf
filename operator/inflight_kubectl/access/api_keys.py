"""API keys of a service behind the gateway: created here, verified by the gateway, stored as hashes in a Secret."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from inflight_base.manifest.api_keys import read_entry
from inflight_kubectl.access.resources import Service
from inflight_kubectl.output import Problem, in_utc

DEFAULT_SECRET = "inflight-api-keys"
"""Name of a Secret with API keys that the gateway may read with the chart's defaults (`gateway.apiKeySecrets`)."""

PREFIX = "ifk_"
_BYTES = 32

KeyState = Literal["valid", "expired", "malformed"]


@dataclass(frozen=True, slots=True)
class NewKey:
    """A new key. Attributes: key: the key itself, which is not stored. value: value of its entry."""

    key_id: str
    tenant: str
    key: str
    expires: datetime | None
    value: str


@dataclass(frozen=True, slots=True)
class StoredKey:
    """An entry of a Secret. Attributes: tenant: empty for a malformed entry. expires: None if it never expires."""

    key_id: str
    tenant: str
    expires: datetime | None
    state: KeyState


def new_key(tenant: str, expires: datetime | None) -> NewKey:
    """Returns a key of 32 random bytes."""
    key = PREFIX + base64.urlsafe_b64encode(secrets.token_bytes(_BYTES)).rstrip(b"=").decode()
    entry = {"tenant": tenant, "sha256": hashlib.sha256(key.encode()).hexdigest()}
    if expires is not None:
        entry["expires"] = rfc3339(expires)
    return NewKey(f"{tenant}-{secrets.token_hex(4)}", tenant, key, expires, json.dumps(entry))


def stored_keys(data: Mapping[str, str], now: datetime) -> list[StoredKey]:
    """Returns the keys of a Secret, by id. Args: data: data of the Secret, in base64, as the API server returns it."""
    return [_stored(key_id, data[key_id], now) for key_id in sorted(data)]


def _stored(key_id: str, value: str, now: datetime) -> StoredKey:
    try:
        tenant, _, expires = read_entry(base64.b64decode(value, validate=True))
    except ValueError:
        return StoredKey(key_id, "", None, "malformed")
    return StoredKey(key_id, tenant, expires, "expired" if expires is not None and expires <= now else "valid")


def rfc3339(moment: datetime) -> str:
    """Returns the time in the form of the Kubernetes API: whole seconds, UTC."""
    return in_utc(moment).strftime("%Y-%m-%dT%H:%M:%SZ")


def gateway_spec(service: Service) -> Mapping[str, Any]:
    """`spec.gateway`; empty where it is not set."""
    return service.spec.get("gateway") or {}


def keys_secret(service: Service) -> str | None:
    """Returns the name of the Secret with the service's API keys; None: no key is required."""
    return (gateway_spec(service).get("auth") or {}).get("apiKeysSecret")


def named_secret(service: Service) -> str:
    """Returns the name of the Secret with the service's API keys.

    Raises:
        Problem: the service names no Secret; with the command that sets one.
    """
    name = keys_secret(service)
    if name:
        return name
    patch = json.dumps({"spec": {"gateway": {"enabled": True, "auth": {"apiKeysSecret": DEFAULT_SECRET}}}})
    raise Problem(
        f"{service.name} asks for no API keys: spec.gateway.auth.apiKeysSecret is not set",
        "Set it, and create a key before clients use the service again: kubectl patch ifsvc"
        f" {service.name} -n {service.namespace} --type=merge -p '{patch}'",
    )


def authorization(service: Service, api_key: str | None) -> dict[str, str]:
    """Returns the headers that requests to `service` need.

    Raises:
        Problem: the service requires an API key, and none is given.
    """
    if keys_secret(service) and gateway_spec(service).get("enabled") and not api_key:
        raise Problem(
            f"{service.name} asks for an API key",
            "Give one with --api-key or in INFLIGHT_API_KEY; `kubectl inflight keys create"
            f" {service.name} --tenant NAME -n {service.namespace}` makes one",
        )
    return {"authorization": f"Bearer {api_key}"} if api_key else {}


def cautions(service: Service, tenant: str) -> list[str]:
    """Returns notes on a new key of `tenant`."""
    spec, said = gateway_spec(service), []
    if not spec.get("enabled"):
        said.append(f"{service.name} is not behind the gateway (spec.gateway.enabled): engines check no API keys")
    tenants = spec.get("tenants") or ()
    if tenants and all(one.get("name") != tenant for one in tenants):
        said.append(f"spec.gateway.tenants does not name {tenant}: it has weight 1 and spec.gateway.defaultLimits")
    return said
