"""Answers of the gateway itself: the models of a service, and health. No engine is asked, woken or kept awake."""

from __future__ import annotations

from urllib.parse import unquote

import msgspec

from inflight_gateway.relay.http.errors import ClientError
from inflight_gateway.relay.intake.admission import Admitted
from inflight_gateway.request.paths import MODELS
from inflight_gateway.types import ServiceConfig

CREATED = 0
"""Unix time that models give as their creation, which the gateway does not know."""

_ONE = f"{MODELS}/"


def answer(path: str, admitted: Admitted, by_model: list[ServiceConfig]) -> bytes | ClientError:
    """Returns the body of the answer, JSON.

    Args:
        by_model: services that a model may choose, for Hosts that name no service.
    """
    if admitted.health:
        return b'{"status":"ok"}'
    services = by_model if admitted.config is None else [admitted.config]
    if not path.startswith(_ONE):
        return msgspec.json.encode({"object": "list", "data": [_model(config.model) for config in services]})
    name = unquote(path.removeprefix(_ONE))
    if all(config.model != name for config in services):
        return ClientError(404, f"the model {name!r} does not exist", "model_not_found")
    return msgspec.json.encode(_model(name))


def _model(name: str) -> dict[str, str | int]:
    """Returns a model in OpenAI's format."""
    return {"id": name, "object": "model", "created": CREATED, "owned_by": "inflight"}
