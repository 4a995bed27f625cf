"""Names of the headers between client, Envoy, relay, picker and engine.

Envoy's outer listener removes all of them from clients' requests, but for `REQUEST_ID`. Requests to the inner listener
come from a relay of the same pod.
"""

from __future__ import annotations

REQUEST_ID = "x-request-id"
"""Request id that the client chose, so not unique: for engines, logs and clients only."""

OWN_REQUEST_ID = "x-inflight-request-id"
"""From the relay to the picker: the gateway's own id of a request, unique, the same for all its attempts."""

DESTINATION = "x-gateway-destination-endpoint"
"""Endpoints in the order to try them, `IP:PORT,IP:PORT`: the Gateway API Inference Extension's protocol."""

SUBSET = "x-gateway-destination-endpoint-subset"
"""Metadata of another gateway: the endpoints that may be picked (Gateway API Inference Extension)."""

SERVICE = "x-inflight-service"
"""NAMESPACE/NAME, from the picker to Envoy: chooses the cluster."""

AVOID = "x-inflight-avoid"
"""From the relay to the picker: endpoints that failed this request, `IP:PORT,...`."""

ATTEMPT = "x-inflight-attempt"
"""From the relay to the picker: 1 for a request's first try; only the first one is charged to its tenant."""

BODY = "x-inflight-body"
"""From the relay to the picker: the fields of the body that a pick depends on, see `body.py`. Without it, the picker
reads the body."""

CHECK_KEY = "x-inflight-check-key"
"""From the relay to the picker, `1`: the request has no body and is not picked for; only its API key is checked. From
the picker to the relay, `1`: this 401 is the answer of that check."""

ENDPOINT = "x-inflight-endpoint"
"""In responses, from Envoy to the relay: the endpoint that answered, IP:PORT."""

TRIES = "x-inflight-tries"
"""In responses, from Envoy to the relay: endpoints that Envoy tried for this attempt, in the order of the pick."""

UPSTREAM_FAILURE = "x-inflight-upstream-failure"
"""In responses of Envoy itself, to the relay: its response flags, which say how the last endpoint failed."""

FIRST_TOKEN_WITHIN = "x-inflight-first-token-within"
"""In responses, from the picker by Envoy to the relay: seconds from the head of the response in which the first token
must come before the request is tried at another replica."""

MAX_ATTEMPTS = "x-inflight-max-attempts"
"""In responses, from the picker by Envoy to the relay: attempts that the service allows for one request."""

PROGRESS = "x-inflight-progress"
"""From the relay to the engine, `1`: answer with progress frames, see docs/engine.md; in responses: the engine does."""

TENANT = "x-inflight-tenant"
SIGNATURE = "x-inflight-signature"
"""Signature of the tenant, a line feed and the request id by the service's tenant keys, see `signing.signed`."""
TENANT_SIGNATURE_V1 = "x-inflight-tenant-signature"
"""The signature for engines of release 0.2: without a time, by one key."""

JWT_TENANT = "x-inflight-jwt-tenant"
"""From Envoy to the relay: the tenant in a JSON Web Token that Envoy has verified. Envoy then removes Authorization."""

INTERNAL = (
    OWN_REQUEST_ID,
    DESTINATION,
    SERVICE,
    AVOID,
    ATTEMPT,
    BODY,
    CHECK_KEY,
    ENDPOINT,
    TRIES,
    UPSTREAM_FAILURE,
    FIRST_TOKEN_WITHIN,
    MAX_ATTEMPTS,
    PROGRESS,
    TENANT,
    SIGNATURE,
    TENANT_SIGNATURE_V1,
    JWT_TENANT,
)

FROM_RELAYS = (OWN_REQUEST_ID, AVOID, ATTEMPT, BODY, CHECK_KEY)
"""Headers from relays to the picker only. Engines refuse a head with a field as long as `BODY` can be."""
