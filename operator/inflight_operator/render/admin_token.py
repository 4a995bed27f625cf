"""The Secret shared by the service's engines, the operator and the gateway."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from inflight_base.manifest import Manifest
from inflight_base.manifest.names import child_names
from inflight_operator.api.types import InferenceService
from inflight_operator.render.metadata import child

TOKEN_KEY = "token"
TENANT_KEY, PROGRESS_KEY = "tenant-key", "tenant-key-progress"
"""Keys in the Secret and names of the files in the engine's container; those before a rotation have `-previous`."""

UNSIGNED = "none"
"""Content of `TENANT_KEY` at services without API keys: their engines take requests that the gateway did not sign. By
`PROGRESS_KEY` they know the answers that it continues."""

SECRET_FOLDER = "/etc/inflight/admin"


def admin_token_secret(service: InferenceService, token: str, tenant_keys: Sequence[str]) -> Manifest:
    """The Secret; engines read it from files, so that it appears in no environment variable and no process list. They
    read changes within about a minute, without a restart.

    Args:
        token: token for admin calls.
        tenant_keys: `ChildPlan.tenant_keys`.
    """
    # Also where there is no gateway: pods from when there was one read the file at each request.
    values, name = {TOKEN_KEY: token}, TENANT_KEY
    if service.spec.gateway.auth is None:
        values[TENANT_KEY], name = UNSIGNED, PROGRESS_KEY
    values |= zip((name, f"{name}-previous"), tenant_keys, strict=False)
    return {
        **child("v1", "Secret", service, child_names(service.metadata.name).admin_token),
        "type": "Opaque",
        "data": {name: base64.b64encode(value.encode()).decode() for name, value in values.items()},
    }
