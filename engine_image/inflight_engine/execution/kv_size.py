"""How many KV blocks to allocate, on the device and in host memory: pure decisions from numbers."""

from __future__ import annotations

from dataclasses import dataclass

from inflight_engine.config import EngineConfig

CPU_MEMORY_SHARE = 0.5
"""On CPU: share of what is available after the weights. The rest is for activations, the API process and the page
cache; in a container, going over the limit is a kill."""
CPU_MEMORY_CAP = 2 << 30
"""On CPU: more is taken only when one sequence of full length needs it."""
GPU_MEMORY_SHARE = 0.9
"""On a GPU: share of what is free after the weights; the rest is for activations."""


class KVCacheSizeError(ValueError):
    """The KV cache that was asked for, or that fits, is too small; the message says which setting to change."""


@dataclass(frozen=True, slots=True)
class KVDemand:
    """What the cache is for.

    Attributes:
        bytes_per_token: over all layers.
        max_model_len: one sequence of this many tokens has to fit.
        on_gpu: which share of `available` to take.
        available: bytes that can still be taken on the device, after the weights.
    """

    bytes_per_token: int
    max_model_len: int
    on_gpu: bool
    available: int


def num_kv_blocks(config: EngineConfig, demand: KVDemand) -> int:
    """`num_kv_blocks` if given, else what `kv_cache_memory` holds, else what a share of the available memory holds, but
    no more than `max_num_seqs` sequences of full length could use.

    With `num_kv_blocks` given, a sequence of full length need not fit: requests that could never fit are refused.

    Raises:
        KVCacheSizeError: see its docstring.
    """
    if config.num_kv_blocks is not None:
        if config.num_kv_blocks < 1:
            raise KVCacheSizeError(f"num_kv_blocks must be at least 1, not {config.num_kv_blocks}")
        return config.num_kv_blocks
    block_bytes = demand.bytes_per_token * config.block_size
    blocks_per_sequence = -(-demand.max_model_len // config.block_size)
    useful = blocks_per_sequence * config.max_num_seqs
    if config.kv_cache_memory is not None:
        blocks = min(config.kv_cache_memory // block_bytes, useful)
        what, change = f"kv_cache_memory {config.kv_cache_memory}", "raise kv_cache_memory"
    else:
        share = GPU_MEMORY_SHARE if demand.on_gpu else CPU_MEMORY_SHARE
        # On a CPU the host memory for preempted requests comes out of the same memory.
        available = demand.available if demand.on_gpu else max(0, demand.available - config.swap_space)
        budget = int(available * share)
        if not demand.on_gpu:
            budget = min(budget, max(CPU_MEMORY_CAP, blocks_per_sequence * block_bytes))
        blocks = min(budget // block_bytes, useful)
        what = f"{share:.0%} of the {available / 2**20:.0f} MiB available after the weights and the swap space"
        change = "give it more memory"
    if blocks < blocks_per_sequence:
        raise KVCacheSizeError(
            f"the KV cache is too small: {what} holds {blocks * config.block_size} tokens at {demand.bytes_per_token} "
            f"bytes each, but max_model_len is {demand.max_model_len} tokens; lower max_model_len or {change}"
        )
    return blocks


def num_host_blocks(swap_space: int, block_bytes: int, available: int) -> int:
    """Whole blocks that `swap_space` bytes of host memory hold; 0 when there is no swap space.

    Args:
        block_bytes: of one block over all layers.
        available: bytes of host memory that can still be taken beside the KV cache; negative where that is larger.

    Raises:
        KVCacheSizeError: `swap_space` is negative, holds not even one block, or is more than there is.
    """
    if swap_space < 0:
        raise KVCacheSizeError(f"swap_space must be 0 (none) or a number of bytes, not {swap_space}")
    if 0 < swap_space < block_bytes:
        raise KVCacheSizeError(
            f"swap_space {swap_space} holds not even one KV block of {block_bytes} bytes; raise swap_space, or set it "
            "to 0 to recompute preempted requests"
        )
    if swap_space > max(0, available):
        raise KVCacheSizeError(
            f"swap_space {swap_space} is more than the {max(0, available)} bytes of host memory that are left beside "
            "the KV cache; lower swap_space or give it more memory"
        )
    return swap_space // block_bytes
