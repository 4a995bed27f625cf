"""KV cache events of an engine: its flag, by vLLM's name, and its ports."""

from __future__ import annotations

import json

from inflight_base.manifest.names import (
    KV_EVENTS_PORT,
    KV_EVENTS_PORT_NAME,
    KV_REPLAY_PORT,
    KV_REPLAY_PORT_NAME,
)
from inflight_operator.api.types import InferenceService

_CONFIG = {
    "enable_kv_cache_events": True,
    "publisher": "zmq",
    "endpoint": f"tcp://*:{KV_EVENTS_PORT}",
    "replay_endpoint": f"tcp://*:{KV_REPLAY_PORT}",
}


def kv_events_flags(service: InferenceService) -> list[str]:
    """The flag of an engine that publishes events."""
    if not service.spec.engine.kv_events:
        return []
    return [f"--kv-events-config={json.dumps(_CONFIG, separators=(',', ':'))}"]


def kv_events_ports(service: InferenceService) -> dict[str, int]:
    """The ports of an engine that publishes events, by name."""
    if not service.spec.engine.kv_events:
        return {}
    return {KV_EVENTS_PORT_NAME: KV_EVENTS_PORT, KV_REPLAY_PORT_NAME: KV_REPLAY_PORT}
