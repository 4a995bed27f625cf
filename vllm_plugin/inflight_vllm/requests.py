"""Requests on their way to vLLM: checks the tenant's signature; class, target and tenant become fields of vLLM."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from inflight_contract.errors import bad_request
from inflight_contract.tenants import HeaderLists, Tenants
from inflight_vllm.settings import PluginSettings

GENERATING = ("/v1/completions", "/v1/chat/completions", "/v1/responses")
"""Paths whose requests have the fields `priority` and `cache_salt`."""

_NO_TARGET_S = 60.0
"""Target of a class that has none, where others have one."""


class RequestRules:
    """Checks and changes requests.

    vLLM has one number for the order of waiting requests (`--scheduling-policy=priority`), smallest first. With targets
    of time to first token that is the request's deadline, in milliseconds since 1970 (see `DeadlineRequestQueue`);
    without, it is the number of the request or of its class.

    Args:
        ordered: vLLM orders waiting requests by priority.
        clock: Unix time.
    """

    def __init__(self, settings: PluginSettings, *, ordered: bool, clock: Callable[[], float]) -> None:
        self._tenants = Tenants(key_file=settings.tenant_key_file, wall=clock)
        self._classes = settings.classes
        self._target = settings.ttft_target
        self._ordered = ordered
        self._clock = clock
        self._by_deadline = ordered and settings.has_targets

    def tenant(self, headers: HeaderLists, request_id: str) -> str:
        """Return the tenant of a request; empty without one.

        Raises:
            ApiError: `Tenants.of` raises it.
        """
        return self._tenants.of(headers, request_id)

    def changes_bodies(self, path: str, tenant: str) -> bool:
        """Return whether requests to a path may need other bodies."""
        return path in GENERATING and bool(tenant or self._classes or self._by_deadline)

    def body(self, body: bytes, tenant: str) -> bytes:
        """Return the body for vLLM; one that is no JSON object is left for vLLM to refuse.

        Raises:
            ApiError: 400, the class is unknown.
        """
        try:
            fields = json.loads(body)
        except (ValueError, RecursionError):
            return body
        if not isinstance(fields, dict):
            return body
        changed = {**fields, **self._order(fields)}
        if self._classes:
            changed.pop("class", None)
        if tenant:
            changed["cache_salt"] = _salt(tenant, fields.get("cache_salt"))
        return json.dumps(changed).encode()

    def _order(self, fields: Mapping[str, Any]) -> dict[str, int]:
        chosen = None
        if self._classes:
            name = fields.get("class", next(iter(self._classes)))
            chosen = self._classes.get(name) if isinstance(name, str) else None
            if chosen is None:
                known = ", ".join(self._classes)
                raise bad_request(f"class: there is no class {name!r}; this server has: {known}", "class")
        if self._by_deadline:
            target = self._target if chosen is None or chosen.ttft_target is None else chosen.ttft_target
            return {"priority": round((self._clock() + (_NO_TARGET_S if target is None else target)) * 1000)}
        if self._ordered and chosen is not None and "priority" not in fields:
            return {"priority": chosen.priority}
        return {}


def _salt(tenant: str, given: object) -> str:
    """Return a salt of vLLM's prefix cache that no other tenant can ask for."""
    return hashlib.sha256(f"{tenant}\n{given if isinstance(given, str) else ''}".encode()).hexdigest()
