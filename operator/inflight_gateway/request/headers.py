"""Names of the headers between clients, Envoy, relays, other gateways and engines.

Clients cannot set them, but for `REQUEST_ID`: Envoy removes `x-inflight-*` and `DESTINATION` from their requests.
"""

from __future__ import annotations

REQUEST_ID = "x-request-id"
"""Request id that the client chose, so not unique: for engines, logs and clients only."""

DESTINATION = "x-gateway-destination-endpoint"
"""Endpoints in the order to try them, `IP:PORT,IP:PORT`: the Gateway API Inference Extension's protocol."""

SUBSET = "x-gateway-destination-endpoint-subset"
"""Metadata of another gateway: the endpoints that may be picked (Gateway API Inference Extension)."""

PROGRESS = "x-inflight-progress"
"""To the engine, `1`: answer with progress frames, see docs/engine.md."""

TENANT = "x-inflight-tenant"
SIGNATURE = "x-inflight-signature"
"""Signature of `signing.tenant_message` by the service's tenant keys, see `signing.signed`."""
TENANT_SIGNATURE_V1 = "x-inflight-tenant-signature"
"""The signature for engines of release 0.2: without a time, by one key."""

JWT_TENANT = "x-inflight-jwt-tenant"
"""From Envoy to the relay: the tenant in a JSON Web Token that Envoy has verified. Envoy then removes Authorization."""

INTERNAL = (DESTINATION, PROGRESS, TENANT, SIGNATURE, TENANT_SIGNATURE_V1, JWT_TENANT)
