"""The engine's configuration: one frozen object, made once from flags or a file, never changed afterwards."""

from __future__ import annotations

from dataclasses import dataclass

from inflight_engine.scheduling.config import ServiceClass

DTYPES = ("auto", "float32", "bfloat16", "float16")
DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the engine process needs. Flag names are these names with dashes.

    Attributes:
        model: `builtin://smollm2`, a folder with a Hugging Face model, or a Hugging Face name (also `hf://NAME`).
        revision: branch, tag or commit of a Hugging Face model.
        dtype: of weights and KV cache; `auto` takes bfloat16 where the device is faster in it, else float32.
        device: `auto` takes a GPU when there is one.
        max_model_len: longest prompt plus output in tokens; None takes the model's own.
        max_num_seqs: capacity: most requests running at once.
        max_num_batched_tokens: capacity: most tokens in one step.
        block_size: tokens in a KV block.
        num_kv_blocks: KV blocks; None derives them from `kv_cache_memory`.
        kv_cache_memory: bytes for the KV cache; None takes a share of what the device has left after the weights.
        kv_headroom: share of the KV blocks that admission leaves free for running requests to grow into.
        scheduling_policy, priority_aging, classes, preemption, preemption_victim, prefix_caching: as in
            `SchedulerConfig`.
        swap_space: bytes of host memory for the KV cache of preempted requests; 0: they are recomputed.
        record: file to which arrivals and decisions are recorded, to be replayed; None: no recording.
        seed: base of the random streams of requests that bring no seed.
    """

    model: str
    revision: str = "main"
    dtype: str = "auto"
    device: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    block_size: int = 16
    num_kv_blocks: int | None = None
    kv_cache_memory: int | None = None
    kv_headroom: float = 0.03
    scheduling_policy: str = "fcfs"
    priority_aging: float = 10.0
    classes: tuple[ServiceClass, ...] = (ServiceClass(),)
    preemption: str = "auto"
    preemption_victim: str = "last_arrived"
    swap_space: int = 0
    prefix_caching: bool = True
    record: str | None = None
    seed: int = 0
