"""Records of what can be found by content: blocks that can be found from now on, and blocks that are lost."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

HASH_SIZE = 16
"""Bytes of the hash of a block."""

DEVICE = "GPU"
"""Medium of the blocks that steps read, as vLLM names it; on a CPU too."""

HOST = "CPU"
"""Medium of the tier in host memory, as vLLM names it."""

DISK = "DISK"
"""Medium of the tier on a disk."""


class BlocksStored(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Consecutive blocks of a sequence can be found from now on.

    Attributes:
        hashes: `HASH_SIZE` bytes of each, one after the other.
        parent: hash of the block before them; empty at the start of a sequence.
        root: digest of tenant and salt at the start of a sequence; empty without these, and for other blocks.
        token_ids: int32 little-endian bytes, those of the blocks.
        medium: where the blocks are. Of blocks that are copied behind the device, there is nothing but the hashes, as
            in vLLM: the event of the device has said the rest.
    """

    hashes: bytes
    parent: bytes
    root: bytes
    token_ids: bytes
    medium: str = DEVICE


class BlocksRemoved(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Blocks cannot be found any more. `hashes`, `medium`: as in `BlocksStored`."""

    hashes: bytes
    medium: str = DEVICE


BlockEvent: TypeAlias = BlocksStored | BlocksRemoved
