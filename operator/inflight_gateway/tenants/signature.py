"""The tenant of a request, signed for the engine, and the headers that must not reach it.

The gateway key stays in the gateway and the operator; each service's engines hold only a key derived from it, so that
an engine's key is useless at another service.
"""

from __future__ import annotations

import base64
import hashlib
import hmac

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.request.headers import TENANT, TENANT_SIGNATURE
from inflight_gateway.types import ServiceConfig

CREDENTIALS = ("authorization", "api-key")
"""Headers that clients put API keys in."""


def tenant_key(gateway_key: bytes, service: ServiceKey, uid: str) -> bytes:
    """The key with which a service's engines verify tenants: 43 ASCII characters, base64url without padding."""
    message = f"tenant/{service.namespace}/{service.name}/{uid}".encode()
    digest = hmac.new(gateway_key, message, hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=")


def signature(key: bytes, tenant: str, request_id: str) -> str:
    """Value of the header `TENANT_SIGNATURE`. Args: key: from `tenant_key`."""
    return "v1=" + hmac.new(key, f"{tenant}\n{request_id}".encode(), hashlib.sha256).hexdigest()


class EngineHeaders:
    """Changes of the picker to the headers of a request to an engine.

    Args:
        gateway_key: content of the Secret `inflight-gateway-key`; None: engines get no tenant header.
    """

    def __init__(self, gateway_key: bytes | None) -> None:
        self._gateway_key = gateway_key
        self._keys: dict[tuple[ServiceKey, str], bytes] = {}

    def to_set(self, config: ServiceConfig, tenant: str, request_id: str) -> tuple[tuple[str, str], ...]:
        """Headers to set: the tenant and its signature; none for requests without a tenant."""
        if not tenant or self._gateway_key is None:
            return ()
        key = self._keys.get((config.key, config.uid))
        if key is None:
            key = self._keys[config.key, config.uid] = tenant_key(self._gateway_key, config.key, config.uid)
        return (TENANT, tenant), (TENANT_SIGNATURE, signature(key, tenant, request_id))

    @staticmethod
    def to_remove(config: ServiceConfig) -> tuple[str, ...]:
        """Headers to remove: API keys, for services with API keys. Without them, the engine handles credentials."""
        return CREDENTIALS if config.api_keys_secret is not None else ()
