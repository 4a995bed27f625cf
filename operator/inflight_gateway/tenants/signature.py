"""The signature that engines accept requests by, and the headers that must not reach them."""

from __future__ import annotations

import time
from collections.abc import Callable

from inflight_base.manifest.keys import ServiceKey
from inflight_base.signing import signed, tenant_key, tenant_message, tenant_signature_v1
from inflight_gateway.request.headers import SIGNATURE, TENANT, TENANT_SIGNATURE_V1
from inflight_gateway.tenants.answers import no_gateway_key
from inflight_gateway.types import Refusal, ServiceConfig

CREDENTIALS = ("authorization", "api-key", "x-api-key")
"""Headers that clients put API keys in."""


class EngineHeaders:
    """Changes to the headers of a request to an engine. Each attempt is signed anew: signatures have a time.

    Args:
        current, previous: keys of the Secret with the gateway's key. Without a current one requests are not signed, and
            services with API keys or tokens cannot be served.
        wall: Unix time.
    """

    def __init__(
        self, current: bytes | None, previous: bytes | None = None, *, wall: Callable[[], float] = time.time
    ) -> None:
        self._gateway_keys = [key for key in (current, previous) if key] if current else []
        self._wall = wall
        self._keys: dict[tuple[ServiceKey, str], list[bytes]] = {}

    def refusal(self, config: ServiceConfig) -> Refusal | None:
        """Returns the 503 for requests to a service with API keys while there is no gateway key; else None."""
        return no_gateway_key(config) if config.keyed and not self._gateway_keys else None

    def to_set(
        self, config: ServiceConfig, tenant: str, request_id: str, progress: str = ""
    ) -> tuple[tuple[str, str], ...]:
        """Headers to set: the tenant, unless it is empty, and signatures; none without a gateway key.

        Requests without a tenant are signed too: engines still ask for signatures after a service's API keys went.

        Args:
            request_id: X-Request-Id as the engine gets it.
            progress: value of the header X-Inflight-Progress, which the caller sets; empty without one.
        """
        if not self._gateway_keys:
            return ()
        keys = self._keys.get((config.key, config.uid))
        if keys is None:
            keys = [tenant_key(key, config.key, config.uid).encode() for key in self._gateway_keys]
            self._keys[config.key, config.uid] = keys
        signature = (SIGNATURE, signed(keys, tenant_message(tenant, request_id, progress), self._wall()))
        if not tenant:
            return (signature,)
        # Engines of release 0.2 may stay for long: InferenceServices can name their image.
        return (
            (TENANT, tenant),
            signature,
            (TENANT_SIGNATURE_V1, tenant_signature_v1(keys[0], tenant_message(tenant, request_id))),
        )

    @staticmethod
    def to_remove(config: ServiceConfig) -> tuple[str, ...]:
        """Headers to remove: API keys, for services that check them. Without, the engine handles credentials."""
        return CREDENTIALS if config.keyed else ()
