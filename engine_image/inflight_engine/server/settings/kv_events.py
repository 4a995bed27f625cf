"""Publishing of KV cache events: the value of `--kv-events-config`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

_Count = Annotated[int, Meta(ge=1, le=10_000_000)]


class KVEventsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's `KVEventsConfig`, field by field.

    Attributes:
        publisher: None: zmq where events are enabled.
        endpoint: where batches are published, such as tcp://*:5557.
        replay_endpoint: where past batches can be asked for; None: nowhere.
        buffer_steps: batches that are kept for that.
        hwm: batches under way to one subscriber; further ones are dropped for it.
        max_queue_size: batches that wait to be encoded; further ones are dropped.
        topic: first frame of each message.
    """

    enable_kv_cache_events: bool = False
    publisher: Literal["null", "zmq"] | None = None
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: _Count = 10_000
    hwm: _Count = 100_000
    max_queue_size: _Count = 100_000
    topic: str = ""


def kv_events_config(text: str | None) -> KVEventsConfig | None:
    """Read the flag's JSON. None: no events.

    Raises:
        ValueError: it is not JSON, or a field is unknown or has a wrong value.
    """
    if text is None:
        return None
    try:
        config = msgspec.json.decode(text, type=KVEventsConfig)
    except msgspec.MsgspecError as error:
        raise ValueError(
            f'--kv-events-config is not JSON such as {{"enable_kv_cache_events": true}}: {error}'
        ) from None
    return config if config.enable_kv_cache_events and config.publisher != "null" else None
