"""The Secret shared by the service's engines, the operator and the gateway."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from inflight_base.manifest import Manifest
from inflight_base.manifest.names import child_names
from inflight_operator.render.metadata import child

if TYPE_CHECKING:
    from inflight_operator.api.types import InferenceService

TOKEN_KEY = "token"
TENANT_KEY = "tenant-key"
"""Keys in the Secret and names of the files in the engine's container."""

SECRET_FOLDER = "/etc/inflight/admin"


def admin_token_secret(service: InferenceService, token: str, tenant_key: str) -> Manifest:
    """The Secret; engines read it from files, so that it appears in no environment variable and no process list.

    Args:
        token: token for admin calls.
        tenant_key: `ChildPlan.tenant_key`; empty renders none.
    """
    values = {TOKEN_KEY: token, **({TENANT_KEY: tenant_key} if tenant_key else {})}
    return {
        **child("v1", "Secret", service, child_names(service.metadata.name).admin_token),
        "type": "Opaque",
        "data": {name: base64.b64encode(value.encode()).decode() for name, value in values.items()},
    }
