"""The key shared by gateway and operator. The tenant key of each service is derived from it; the gateway signs the
tenant of a request with it, and the engine verifies it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from inflight_base.manifest.keys import ServiceKey
from inflight_base.signing import tenant_key
from inflight_operator.keys.live_key import KEY_BYTES, LiveKey, long_enough

GATEWAY_KEY_SECRET_NAME = "inflight-gateway-key"


@dataclass(frozen=True, slots=True)
class GatewayKey:
    key: bytes = field(repr=False)

    def tenant_key(self, service: ServiceKey, uid: str) -> str:
        """Of the service with this uid."""
        return tenant_key(self.key, service, uid)


class LiveGatewayKey(LiveKey[GatewayKey]):
    """The key in a Secret with the field `key`, which the gateway's pods mount. Both sides strip white space around
    it."""

    what = "the gateway's key"
    fields = ("key",)

    def fresh(self) -> GatewayKey:
        """Printable: random bytes may begin or end with white space."""
        return GatewayKey(secrets.token_urlsafe(KEY_BYTES).encode())

    def written(self, key: GatewayKey) -> tuple[bytes, ...]:
        return (key.key,)

    def read(self, values: Mapping[str, bytes]) -> GatewayKey:
        return GatewayKey(long_enough(values["key"].strip()))
