"""The Secret with the token for admin calls to the service's engines."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from inflight_operator.render.labels import child_metadata, child_names
from inflight_operator.render.plan import Manifest

if TYPE_CHECKING:
    from inflight_operator.api.types import InferenceService

TOKEN_KEY = "token"
"""Key in the Secret and name of the file in the engine's container."""


def admin_token_secret(service: InferenceService, token: str) -> Manifest:
    """The Secret; each engine reads the token from a file, so that it is in no environment and no process list."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": child_metadata(service, child_names(service.metadata.name).admin_token),
        "type": "Opaque",
        "data": {TOKEN_KEY: base64.b64encode(token.encode()).decode()},
    }
