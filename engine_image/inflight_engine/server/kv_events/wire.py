"""The messages on the wire: vLLM's `vllm.distributed.kv_events`, one batch a message (vLLM >= 0.24, and what Dynamo,
llm-d and SGLang read)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from inflight_engine.block_events import HASH_SIZE, BlockEvent, BlocksStored

ATTENTION = "full_attention"
"""Kind of the blocks' layers, by vLLM's name: all of them attend to all tokens."""

_WORDS = HASH_SIZE // 8


class BlockStored(msgspec.Struct, omit_defaults=True, tag=True):
    """Consecutive blocks are in the cache.

    Attributes:
        extra_keys: of each block, what its hash covers beside its tokens; None: of no block anything.
        group_idx, kv_cache_spec_kind: all layers are alike, so there is one group.
    """

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: None
    medium: str
    lora_name: None
    extra_keys: list[tuple[str, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class BlockRemoved(msgspec.Struct, omit_defaults=True, tag=True):
    block_hashes: list[int]
    medium: str
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True):
    """The cache is empty; of blocks that come afterwards there will be events."""


class Batch(msgspec.Struct, array_like=True):
    """Events in their order. `ts`: Unix seconds."""

    ts: float
    events: Sequence[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int = 0


_encoder = msgspec.msgpack.Encoder()
decode = msgspec.msgpack.Decoder(Batch).decode


def cleared(now: float) -> bytes:
    """Return a batch that says that the cache is empty."""
    return _encoder.encode(Batch(now, [AllBlocksCleared()]))


def encode(events: Sequence[BlockEvent], block_size: int, now: float) -> bytes:
    """Return a batch. `now`: Unix seconds."""
    return _encoder.encode(Batch(now, [_event(each, block_size) for each in events]))


def _event(event: BlockEvent, block_size: int) -> BlockStored | BlockRemoved:
    hashes = short(event.hashes)
    if not isinstance(event, BlocksStored):
        return BlockRemoved(hashes, event.medium, group_idx=0)
    # The digest of tenant and salt, not their text: a salt is what others must not know.
    first = (event.root.hex(),) if event.root else None
    return BlockStored(
        block_hashes=hashes,
        parent_block_hash=short(event.parent)[0] if event.parent else None,
        token_ids=np.frombuffer(event.token_ids, "<i4").tolist(),
        block_size=block_size,
        lora_id=None,
        medium=event.medium,
        lora_name=None,
        extra_keys=None if first is None else [first] + [None] * (len(hashes) - 1),
        group_idx=0,
        kv_cache_spec_kind=ATTENTION,
    )


def short(hashes: bytes) -> list[int]:
    """Return hashes as vLLM shortens them: the last 64 bits of each."""
    words: list[int] = np.frombuffer(hashes, ">u8")[_WORDS - 1 :: _WORDS].tolist()
    return words
