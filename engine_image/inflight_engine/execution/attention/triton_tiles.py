"""The split of work among programs of the Triton kernels: fixed tiles for each head size and chip, and how many
programs share a decode.

Nothing is tried out at start, which would take seconds to minutes. The tiles follow from what a multiprocessor has:
- Decodes are bound by memory bandwidth. Rows are as few as a tensor core takes (16). Tiles leave room for two programs
  or more on a multiprocessor: one computes while another waits.
- Prefill is bound by the tensor cores. On Hopper 256 rows feed the products of two warpgroups, twice 64 rows each. Keys
  per tile shrink as heads grow, so that tiles stay within shared memory (227 KiB there, 163 KiB on A100, 99 KiB on the
  others of compute capability 8) and accumulators within 255 registers a thread, of which the compiler spills a few
  bytes at most.
- Loading a key takes two loads, of its block's number and then of the key. The compiler spreads both over the stages of
  its pipeline, so two tiles of keys in flight take 3 stages for a product from shared memory (Hopper's prefill) and 5
  for one from registers. On Hopper decodes have 4: one program more fits on a multiprocessor.
- float32 is computed without tensor cores, as exactly as it is stored: small tiles.

On Hopper they are those that were fastest on an H200 with Triton 3.6 (`tools/bench/gpu.sh tiles`), in prefill for
prompts of 1,000 tokens and more; for other chips they are estimates.
"""

from __future__ import annotations

from dataclasses import dataclass

_MIN_ROWS = 16
"""Minimum number of rows of a tensor core's product."""
_PROGRAMS_PER_MULTIPROCESSOR = 2
_LONG_SPLIT = 1024
"""Number of tokens that a sequence must exceed to be split when there are programs enough. The split keeps one long
sequence among many from occupying a few multiprocessors after all others are done."""
_MAX_LONG_SPLITS = 8
_MAX_SPLITS = 64


@dataclass(frozen=True, slots=True)
class Tiles:
    """Size of the tile that a program computes at once.

    Attributes:
        rows: queries times the heads that share a key/value head.
        keys: number of keys in a step of its loop.
    """

    rows: int
    keys: int
    num_warps: int
    num_stages: int

    def queries(self, group: int) -> int:
        """Return the number of tokens whose `group` heads each have a row."""
        return self.rows // group


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """Split of sequences among programs. num_splits: maximum number of programs that share a sequence; min_tiles:
    minimum number of tiles of keys that a program takes."""

    num_splits: int
    min_tiles: int


_HOPPER = 200 << 10
_A100 = 128 << 10
"""Bytes of shared memory that tell chips apart: one with more is of this generation or a later one."""


def decode_tiles(head_dim: int, group: int, dtype_bytes: int, shared_memory: int) -> Tiles:
    """Tiles for decodes.

    Args:
        group: query heads that share a key/value head.
        dtype_bytes: bytes of a number of the queries.
        shared_memory: bytes that a program can have on the chip.
    """
    rows = max(_MIN_ROWS, _power_of_2(group))
    if dtype_bytes == 4:
        return Tiles(rows, 32 if head_dim <= 128 else 16, 4, 1)
    keys = 64 if head_dim <= 128 else 32
    if shared_memory > _HOPPER:
        return Tiles(rows, keys, 2 if rows == _MIN_ROWS else 4, 4)
    return Tiles(rows, keys, 4, 5 if shared_memory > _A100 else 4)


def prefill_tiles(head_dim: int, group: int, dtype_bytes: int, shared_memory: int) -> Tiles:
    """Tiles for prefill; arguments as for `decode_tiles`."""
    if dtype_bytes == 4:
        rows, keys, num_warps, num_stages = (32, 32, 4, 1) if head_dim <= 128 else (32, 16, 4, 1)
    elif shared_memory > _HOPPER:
        rows, keys, num_warps, num_stages = (256, 64, 8, 3) if head_dim <= 128 else (128, 64, 8, 3)
    elif head_dim <= 64:
        rows, keys, num_warps, num_stages = (128, 64, 4, 5)
    elif head_dim <= 128:
        rows, keys, num_warps, num_stages = (128, 64 if shared_memory > _A100 else 32, 8, 5)
    else:
        rows, keys, num_warps, num_stages = (64, 32, 4, 3)
    return Tiles(max(rows, _power_of_2(group)), keys, num_warps, num_stages)


def split_plan(rows: int, num_kv_heads: int, num_multiprocessors: int, max_model_len: int, tile: int) -> SplitPlan:
    """Return the split of each of `rows` sequences, whose lengths only the device knows.

    Args:
        tile: keys in a step of a program's loop.
    """
    long_splits = min(_MAX_LONG_SPLITS, max(1, max_model_len // _LONG_SPLIT))
    wanted = -(-_PROGRAMS_PER_MULTIPROCESSOR * num_multiprocessors // (rows * num_kv_heads))
    if wanted <= long_splits:
        return SplitPlan(long_splits, _LONG_SPLIT // tile)
    return SplitPlan(min(wanted, _MAX_SPLITS, max(1, -(-max_model_len // tile))), 1)


def _power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length()
