"""The engine's configuration: one frozen object, made once from flags or a file, never changed afterwards."""

from __future__ import annotations

from dataclasses import dataclass

from inflight_engine.scheduling.config import ServiceClass
from inflight_policies.deadline import LATE_SHARE
from inflight_policies.priority import PRIORITY_AGING_S
from inflight_settings.limits import DEFAULT_LIMITS

DTYPES = ("auto", "float32", "bfloat16", "float16")
DEVICES = ("auto", "cpu", "cuda")
QUANTIZATIONS = ("none", "int8", "int4")
KV_CACHE_DTYPES = ("auto", "fp8")
ATTENTION_BACKENDS = ("auto", "flash-attn-3", "triton", "cpu-native", "torch-sdpa")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the engine process needs. Flag names are these names with dashes.

    Attributes:
        model: `builtin://smollm2`, a folder with a Hugging Face model, or a Hugging Face name (also `hf://NAME`).
        revision: branch, tag or commit of a Hugging Face model.
        dtype: of weights and KV cache; `auto` takes bfloat16 where the device is faster in it, else float32.
        quantization: of weights: `none`, or on a CPU with the native kernels `int8` or `int4`.
        device: `auto` takes a GPU when there is one.
        attention_backend: by name; `auto` takes the fastest that can serve the model here.
        tensor_parallel_size: GPUs (or on CPU processes) that share each layer.
        enforce_eager: no CUDA graphs.
        async_scheduling: on a GPU, schedule the next step while one runs.
        batch_invariant: the same tokens whatever else is in the batch, at some cost in speed; on CPU it always holds
            where the native kernels compute. Refused where it is not supported, as through transformers' modules.
        num_threads: on CPU, threads that compute; None takes as many as the process may use CPUs, less one where there
            are more than four.
        max_model_len: longest prompt plus output in tokens; None takes the model's own.
        max_num_seqs: capacity: most requests running at once.
        max_num_batched_tokens: capacity: most tokens in one step.
        block_size: tokens in a KV block. Small blocks waste less memory at the end of each sequence and share more
            prefixes.
        num_kv_blocks: KV blocks; None derives them from `kv_cache_memory`.
        kv_cache_memory: bytes for the KV cache; None takes a share of what the device has left after the weights.
        kv_cache_dtype: `auto` is `dtype`; `fp8` (GPUs that have it) halves the cache.
        gpu_memory_utilization: share of a GPU's memory for weights, activations and KV cache together.
        kv_headroom: share of the KV blocks that admission leaves free for running requests to grow into.
        scheduling_policy, priority_aging, ttft_target, late_share, classes, preemption, preemption_victim,
            prefix_caching: as in `SchedulerConfig`.
        ttft_per_1k_tokens: seconds that each 1,000 tokens of a prompt add to its target, of a class or of all.
        swap_space: bytes of host memory for the KV cache of preempted requests; 0: they are recomputed.
        record: file to which arrivals and decisions are recorded, to be replayed; None: no recording.
        seed: base of the random streams of requests that bring no seed.
        log_level, log_format: as in `logs.configure`, of all processes.
    """

    model: str
    revision: str = "main"
    dtype: str = "auto"
    quantization: str = "none"
    device: str = "auto"
    attention_backend: str = "auto"
    tensor_parallel_size: int = 1
    enforce_eager: bool = False
    async_scheduling: bool = True
    batch_invariant: bool = False
    num_threads: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int = DEFAULT_LIMITS.max_num_seqs
    max_num_batched_tokens: int = DEFAULT_LIMITS.max_num_batched_tokens
    block_size: int = 16
    num_kv_blocks: int | None = None
    kv_cache_memory: int | None = None
    kv_cache_dtype: str = "auto"
    gpu_memory_utilization: float = 0.9
    kv_headroom: float = 0.03
    scheduling_policy: str = "fcfs"
    priority_aging: float = PRIORITY_AGING_S
    ttft_target: float | None = None
    ttft_per_1k_tokens: float = 0.0
    late_share: float = LATE_SHARE
    classes: tuple[ServiceClass, ...] = (ServiceClass(),)
    preemption: str = "auto"
    preemption_victim: str = "last_arrived"
    swap_space: int = 0
    prefix_caching: bool = True
    record: str | None = None
    seed: int = 0
    log_level: str = "info"
    log_format: str = "text"

    @property
    def ttft_per_token(self) -> float:
        return self.ttft_per_1k_tokens / 1000
