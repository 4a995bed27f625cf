"""spec.gateway: the gateway in front of the engines."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field

from inflight_base.manifest import defaults
from inflight_operator.api.base import SpecModel, validation
from inflight_operator.api.duration import Duration, duration_field
from inflight_operator.api.pods.template import INT_OR_STRING, readable_quantity

MOST = 1_000_000_000
"""Highest rate limit: more than any fleet serves in a minute."""

_TENANT = "^[a-zA-Z0-9]([-_.a-zA-Z0-9]*[a-zA-Z0-9])?$"

_BYTES = (
    "type(self) == int ? (self >= 1048576 && self <= 17179869184) : (isQuantity(self) &&"
    " quantity(self).compareTo(quantity('1Mi')) >= 0 && quantity(self).compareTo(quantity('16Gi')) <= 0)"
)


class Hold(SpecModel):
    """Bounds on the requests that wait in the gateway because no replica can start them soon. A request beyond
    them is answered 503 with Retry-After."""

    max_requests: int = Field(
        default=defaults.HOLD_MAX_REQUESTS, ge=1, le=100000, description="Maximum number of waiting requests."
    )
    max_bytes: Annotated[str | int, AfterValidator(readable_quantity), Field(json_schema_extra=INT_OR_STRING)] = Field(
        default=defaults.HOLD_MAX_BYTES,
        description="Maximum size of the bodies of all waiting requests together, from 1Mi to 16Gi.",
        json_schema_extra=validation(_BYTES, "gateway.hold.maxBytes must be a quantity from 1Mi to 16Gi, such as 64Mi"),
    )
    max_wait: Duration = duration_field(
        "gateway.hold.maxWait",
        "Maximum time that a request waits. For a service that scales to zero, set it above the time that a replica"
        " takes to start, or the requests that wake the service are answered 503.",
        defaults.HOLD_MAX_WAIT,
        ("1s", "1h"),
    )


JwtTenant = Annotated[
    str,
    Field(
        min_length=1,
        max_length=63,
        json_schema_extra=validation(
            f"self == '*' || self.matches('{_TENANT}')",
            "gateway.auth.jwtTenants must be names of tenants, such as acme, or *",
        ),
    ),
]


class Auth(SpecModel):
    """Clients that may use the service: those with an API key or a token. All others are answered 401, and engines take
    requests from the gateway's pods only."""

    model_config = ConfigDict(
        json_schema_extra=validation(
            "has(self.apiKeysSecret) || has(self.jwtTenants)",
            "gateway.auth must have apiKeysSecret, jwtTenants or both",
        )
    )

    api_keys_secret: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="Name of a Secret of this namespace with the hashes of API keys; `kubectl inflight keys` writes it."
        " Default: no API key is valid.",
        json_schema_extra=validation(
            "self.matches('^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$')",
            "gateway.auth.apiKeysSecret must be the name of a Secret, such as inflight-api-keys",
        ),
    )
    jwt_tenants: Annotated[list[JwtTenant], Field(min_length=1, max_length=256)] | None = Field(
        default=None,
        description="Tenants whose tokens (JWT) the service accepts, which the gateway verifies by the chart's values"
        ' gateway.jwt; "*": all of them. Default: no token is valid.',
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )


class TenantLimits(SpecModel):
    """Limits of one tenant. A request beyond them is answered 429 with Retry-After."""

    requests_per_minute: int | None = Field(default=None, ge=1, le=MOST, description="Requests per minute.")
    tokens_per_minute: int | None = Field(
        default=None, ge=1, le=MOST, description="Prompt and output tokens per minute, together."
    )
    concurrent_requests: int | None = Field(
        default=None, ge=1, le=MOST, description="Requests that are held or in flight at the same time."
    )


class Tenant(TenantLimits):
    """A tenant with a share or limits of its own. Limits that are not set do not bind: defaultLimits are for tenants
    that this list does not name."""

    name: str = Field(
        min_length=1,
        max_length=63,
        description="Name of the tenant, as in the entries of gateway.auth.apiKeysSecret.",
        json_schema_extra=validation(
            f"self.matches('{_TENANT}')",
            "gateway.tenants.name must be at most 63 letters, digits, '-', '_' and '.', and begin and end with a"
            " letter or digit, such as acme",
        ),
    )
    weight: float = Field(
        default=1.0,
        le=1000000,
        description="The tenant's share of tokens while several tenants have requests waiting, relative to the weights"
        " of the others. Above 0.",
        json_schema_extra=validation(
            "self > 0.0", "gateway.tenants.weight must be above 0, such as 2: a tenant of 0 would starve"
        ),
    )


def _weight(what: str) -> float:
    weight: float = Field(default=1.0, ge=0, le=1000, description=f"Weight of {what}, 0 to 1000. 0 turns it off.")
    return weight


class Scores(SpecModel):
    """Weights of the measurements by which the gateway chooses the replica of a request."""

    pending_tokens: float = _weight("the prompt tokens that the replica has not computed yet")
    running: float = _weight("the requests that run there")
    kv_cache: float = _weight("the share of its KV cache in use")
    predicted_ttft: float = _weight("the time to first token that the cost model predicts")
    prefix: float = _weight("the prompt tokens that its prefix cache holds")


class InferencePool(SpecModel):
    """The service as a backend of another gateway, by the Gateway API Inference Extension."""

    enabled: bool = Field(
        default=False,
        description="Create an InferencePool of the service's name, for HTTPRoutes of other gateways. It needs the API"
        " inference.networking.k8s.io/v1 in the cluster, and the chart's value gateway.extProcPort.",
    )


class Gateway(SpecModel):
    """The gateway in front of the engines: it chooses the replica for each request, holds requests that no replica can
    start, tries another replica when one fails, and checks API keys and limits."""

    enabled: bool = Field(
        default=False,
        description="Route requests to the service's address through the gateway; the address stays the same. A change"
        " rolls out new pods.",
    )
    continuation: bool = Field(
        default=True,
        description="Continue a response whose replica fails on another replica, without a gap.",
    )
    max_attempts: int = Field(
        default=defaults.MAX_ATTEMPTS,
        ge=1,
        le=10,
        description="Maximum number of replicas that one request is sent to, including the first one.",
    )
    hold: Hold = Field(default_factory=Hold, description="Bounds on waiting requests.")
    auth: Auth | None = Field(default=None, description="Clients that may use the service. Default: all.")
    tenants: Annotated[list[Tenant], Field(max_length=256)] = Field(
        default_factory=list,
        description="Tenants with shares or limits of their own.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    default_limits: TenantLimits = Field(
        default_factory=TenantLimits,
        description="Limits of each tenant that gateway.tenants does not name. Default: none.",
    )
    inference_pool: InferencePool = Field(
        default_factory=InferencePool, description="The service as a backend of other gateways."
    )
    scores: Scores = Field(
        default_factory=Scores, description="Weights of the measurements that the choice of a replica is based on."
    )
