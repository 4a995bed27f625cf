"""The encoding, and the setting."""

import msgspec
import numpy as np
import pytest

from inflight_engine.block_events import BlocksRemoved, BlocksStored
from inflight_engine.cache.prefix import block_hashes, root_hash
from inflight_engine.server.kv_events import wire
from inflight_engine.server.settings.kv_events import KVEventsConfig, kv_events_config
from tests.engine.kv_events.consumer import short

TOKENS = np.arange(8, dtype=np.int32)


def decoded(*events):
    _, maps, _ = msgspec.msgpack.decode(wire.encode(events, 4, 1.5))
    return maps


def stored(root=b""):
    hashes = block_hashes(TOKENS, 4, root or root_hash("", ""))
    return hashes, BlocksStored(b"".join(hashes), b"", root, TOKENS.tobytes())


def test_a_batch_is_time_events_and_rank():
    assert msgspec.msgpack.decode(wire.cleared(1.5)) == [1.5, [{"type": "AllBlocksCleared"}], 0]


def test_stored_blocks_have_the_fields_of_vllm():
    hashes, event = stored()
    assert decoded(event) == [
        {
            "type": "BlockStored",
            "block_hashes": [short(each) for each in hashes],
            "parent_block_hash": None,
            "token_ids": [*range(8)],
            "block_size": 4,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }
    ]


def test_blocks_behind_others_name_the_one_before():
    (first, second), event = stored()
    (map_,) = decoded(BlocksStored(second, first, b"", event.token_ids[16:]))
    assert (map_["parent_block_hash"], map_["block_hashes"]) == (short(first), [short(second)])


def test_removed_blocks_have_the_fields_of_vllm():
    hashes, _ = stored()
    (map_,) = decoded(BlocksRemoved(b"".join(hashes), "CPU"))
    assert map_ == {
        "type": "BlockRemoved",
        "block_hashes": [short(each) for each in hashes],
        "medium": "CPU",
        "group_idx": 0,
    }


def test_a_tenants_first_block_has_a_key_that_says_neither_tenant_nor_salt():
    root = root_hash("tenant-a", "secret")
    (map_,) = decoded(stored(root)[1])
    assert map_["extra_keys"] == [[root.hex()], None]
    content = wire.encode([stored(root)[1]], 4, 1.5)
    assert b"tenant" not in content
    assert b"secret" not in content


@pytest.mark.parametrize("text", [None, "{}", '{"enable_kv_cache_events": false}', '{"endpoint": "tcp://*:1"}'])
def test_events_are_off_unless_they_are_enabled(text):
    assert kv_events_config(text) is None


def test_vllms_null_publisher_is_none():
    assert kv_events_config('{"enable_kv_cache_events": true, "publisher": "null"}') is None


def test_defaults_are_those_of_vllm():
    assert kv_events_config('{"enable_kv_cache_events": true}') == KVEventsConfig(
        True, None, "tcp://*:5557", None, 10_000, 100_000, 100_000, ""
    )


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "truncated"),
        ("[]", "Expected `object`"),
        ('{"enable_kv_cache_events": 1}', "enable_kv_cache_events"),
        ('{"enabled": true}', "unknown field `enabled`"),
        ('{"publisher": "nats"}', "publisher"),
        ('{"buffer_steps": 0}', "buffer_steps"),
        ('{"hwm": 1000000000000000000000000000000}', "hwm"),
        ('{"max_queue_size": -1}', "max_queue_size"),
    ],
)
def test_a_wrong_value_is_refused_with_its_field(text, named):
    with pytest.raises(ValueError, match=r"^--kv-events-config is not JSON such as ") as refused:
        kv_events_config(text)
    assert named in str(refused.value)
