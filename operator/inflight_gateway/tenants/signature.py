"""The tenant of a request, signed for the engine, and the headers that must not reach it."""

from __future__ import annotations

from inflight_base.manifest.keys import ServiceKey
from inflight_base.signing import tenant_key, tenant_signature
from inflight_gateway.request.headers import TENANT, TENANT_SIGNATURE
from inflight_gateway.types import ServiceConfig

CREDENTIALS = ("authorization", "api-key")
"""Headers that clients put API keys in."""


class EngineHeaders:
    """Changes of the picker to the headers of a request to an engine.

    Args:
        gateway_key: content of the Secret `inflight-gateway-key`; None: engines get no tenant header.
    """

    def __init__(self, gateway_key: bytes | None) -> None:
        self._gateway_key = gateway_key
        self._keys: dict[tuple[ServiceKey, str], str] = {}

    def to_set(self, config: ServiceConfig, tenant: str, request_id: str) -> tuple[tuple[str, str], ...]:
        """Headers to set: the tenant and its signature; none for requests without a tenant."""
        if not tenant or self._gateway_key is None:
            return ()
        key = self._keys.get((config.key, config.uid))
        if key is None:
            key = self._keys[config.key, config.uid] = tenant_key(self._gateway_key, config.key, config.uid)
        return (TENANT, tenant), (TENANT_SIGNATURE, tenant_signature(key, tenant, request_id))

    @staticmethod
    def to_remove(config: ServiceConfig) -> tuple[str, ...]:
        """Headers to remove: API keys, for services with API keys. Without them, the engine handles credentials."""
        return CREDENTIALS if config.api_keys_secret is not None else ()
