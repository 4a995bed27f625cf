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

    def fresh(self) -> dict[str, bytes]:
        """Printable: random bytes may begin or end with white space."""
        return {"key": secrets.token_urlsafe(KEY_BYTES).encode()}

    def read(self, fields: Mapping[str, bytes]) -> GatewayKey:
        return GatewayKey(long_enough(fields.get("key", b"").strip()))
