"""The number of KV blocks to allocate, on the device and in host memory: pure decisions from numbers."""

from __future__ import annotations

from dataclasses import dataclass

from inflight_settings.engine import EngineConfig

CPU_MEMORY_SHARE = 0.5
"""Share of the memory available after the weights that the KV cache takes on a CPU. The rest is for activations, the
API process and the page cache; in a container, going over the limit is a kill."""
CPU_MEMORY_CAP = 2 << 30
"""Maximum bytes of the KV cache on a CPU without a memory limit, where other processes count on the same memory. More
is taken only when one sequence of full length needs it."""
POD_MEMORY_RESERVE = 1 << 30
POD_MEMORY_SHARE = 0.9
"""Share of the memory beyond the reserve that the KV cache takes on a CPU with a memory limit, if that is more than
`CPU_MEMORY_SHARE` of all. Activations, the API process and libraries do not grow with the pod, so the reserve is fixed;
the rest is for the page cache and for what the kernel charges to the pod. The cache's pages are taken when they are
first written, so a size that is too large would be a kill much later."""
MIB = 1 << 20


class KVCacheSizeError(ValueError):
    """The KV cache that is configured, or that fits, is too small; the message says which setting to change."""


@dataclass(frozen=True, slots=True)
class KVDemand:
    """Requirements for the KV cache.

    Attributes:
        bytes_per_token: bytes of a token's keys and values over all layers.
        max_model_len: number of tokens of the longest sequence, which has to fit.
        block_size: number of tokens in a block.
    """

    bytes_per_token: int
    max_model_len: int
    block_size: int


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Memory of the host.

    Attributes:
        available: bytes that can still be taken, after the weights.
        limited: `available` is bounded by a limit of this process's cgroup, not by the whole machine.
    """

    available: int
    limited: bool


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Bytes of a GPU.

    Attributes:
        total: memory of the device.
        used: memory of the weights, the CUDA context and all else on the device, other processes included.
        activations: the most that a step takes beside weights and KV cache, measured on the largest one.
        graphs: memory of all CUDA graphs.
    """

    total: int
    used: int
    activations: int
    graphs: int


def gpu_budget(utilization: float, memory: GpuMemory) -> int:
    """Bytes for the KV cache such that `utilization` of the device is in use by all together; never negative."""
    return max(0, int(memory.total * utilization) - memory.used - memory.activations - memory.graphs)


def cpu_budget(memory: HostMemory, swap_space: int, sequence_bytes: int) -> int:
    """Bytes for the KV cache on a CPU.

    Args:
        swap_space: the host memory for preempted requests comes out of the same memory.
        sequence_bytes: bytes of one sequence of full length.
    """
    available = max(0, memory.available - swap_space)
    share = int(available * CPU_MEMORY_SHARE)
    if memory.limited:
        return max(share, int((available - POD_MEMORY_RESERVE) * POD_MEMORY_SHARE))
    return min(share, max(CPU_MEMORY_CAP, sequence_bytes))


def is_given(config: EngineConfig) -> bool:
    """Return whether the configuration gives the size of the KV cache, so that nothing needs to be measured."""
    return config.num_kv_blocks is not None or config.kv_cache_memory is not None


def num_kv_blocks(config: EngineConfig, demand: KVDemand, memory: HostMemory | GpuMemory) -> int:
    """`num_kv_blocks` if given, else what `kv_cache_memory` holds, else what a share of the memory holds, but no more
    than `max_num_seqs` sequences of full length could use.

    With `num_kv_blocks` given, a sequence of full length need not fit: requests that could never fit are refused.

    Raises:
        KVCacheSizeError: see its docstring.
    """
    if not 0 < config.gpu_memory_utilization <= 1:
        raise KVCacheSizeError(
            f"gpu_memory_utilization must be above 0 and at most 1, not {config.gpu_memory_utilization}"
        )
    if config.num_kv_blocks is not None:
        if config.num_kv_blocks < 1:
            raise KVCacheSizeError(f"num_kv_blocks must be at least 1, not {config.num_kv_blocks}")
        return config.num_kv_blocks
    block_bytes = demand.bytes_per_token * demand.block_size
    blocks_per_sequence = -(-demand.max_model_len // demand.block_size)
    useful = blocks_per_sequence * config.max_num_seqs
    if config.kv_cache_memory is not None:
        blocks = min(config.kv_cache_memory // block_bytes, useful)
        what, change = f"kv_cache_memory {config.kv_cache_memory}", "or raise kv_cache_memory"
    elif isinstance(memory, GpuMemory):
        blocks = min(gpu_budget(config.gpu_memory_utilization, memory) // block_bytes, useful)
        what = (
            f"gpu_memory_utilization {config.gpu_memory_utilization} of {memory.total // MIB} MiB, less "
            f"{memory.used // MIB} MiB in use, {memory.activations // MIB} MiB for a step of "
            f"{config.capacity('cuda').max_num_batched_tokens} tokens and {memory.graphs // MIB} MiB for CUDA graphs,"
        )
        change = "or max_num_batched_tokens, raise gpu_memory_utilization, or set kv_cache_dtype to fp8"
    else:
        budget = cpu_budget(memory, config.swap_space, blocks_per_sequence * block_bytes)
        blocks = min(budget // block_bytes, useful)
        what = (
            f"{budget // MIB} MiB, as a safe share of the {max(0, memory.available - config.swap_space) // MIB} MiB "
            "available after the weights and the swap space,"
        )
        change = "or give it more memory"
    if blocks < blocks_per_sequence:
        raise KVCacheSizeError(
            f"the KV cache is too small: {what} holds {blocks * demand.block_size} tokens at {demand.bytes_per_token} "
            f"bytes each, but max_model_len is {demand.max_model_len} tokens; lower max_model_len {change}"
        )
    return blocks


def num_host_blocks(swap_space: int, block_bytes: int, available: int) -> int:
    """Whole blocks that `swap_space` bytes of host memory hold; 0 when there is no swap space.

    Args:
        block_bytes: bytes of one block over all layers.
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
