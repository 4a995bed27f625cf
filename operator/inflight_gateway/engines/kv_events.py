"""KV cache events of engines: vLLM's batches (`vllm.distributed.kv_events`, 0.24 and later), as far as they say which
blocks there are.

Token ids are skipped, so that a batch costs some microseconds.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from inflight_gateway.pick.blocks import DEVICE, ReplicaBlocks

_MOST_TOKENS = 2**16

_Name: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
_Medium: TypeAlias = Annotated[str, msgspec.Meta(max_length=32)]


class Unreadable(ValueError):
    """A message is no batch of events, or one that is not understood."""


class _Event(msgspec.Struct):
    """Attributes: group_idx: group of layers; those of further groups have blocks of their own."""

    group_idx: int | None = None


class BlockStored(_Event, tag=True, kw_only=True):
    """Consecutive blocks of a sequence can be found. Attributes: parent_block_hash: None: they begin it."""

    block_hashes: list[_Name]
    parent_block_hash: _Name | None
    block_size: Annotated[int, msgspec.Meta(ge=1, le=_MOST_TOKENS)] = 16
    medium: _Medium | None = None


class BlockRemoved(_Event, tag=True, kw_only=True):
    """Blocks cannot be found any more."""

    block_hashes: list[_Name]
    medium: _Medium | None = None


class AllBlocksCleared(_Event, tag=True, kw_only=True):
    """The cache is empty."""


class _Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


_decoder = msgspec.msgpack.Decoder(_Batch)


def apply(content: bytes, blocks: ReplicaBlocks, now: float) -> None:
    """Applies the events of a batch. Args: now: in seconds.

    Raises:
        Unreadable: it is no batch; some of its events may be applied.
        TooManyBlocks: likewise; there is no room for them.
    """
    try:
        batch = _decoder.decode(content)
    except msgspec.MsgspecError as error:
        raise Unreadable(str(error)) from None
    for event in batch.events:
        if event.group_idx:
            raise Unreadable("blocks of several groups of layers")
        match event:
            case BlockStored():
                if (medium := _medium(event)) == DEVICE:
                    blocks.block_size = event.block_size
                blocks.stored(event.block_hashes, event.parent_block_hash, medium)
            case BlockRemoved():
                blocks.removed(event.block_hashes, _medium(event))
            case AllBlocksCleared():
                blocks.clear(now)


def _medium(event: BlockStored | BlockRemoved) -> str:
    return DEVICE if event.medium is None else event.medium.upper()
