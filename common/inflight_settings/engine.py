"""Settings of the engine process: model, device, memory, logs, and those of its scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from inflight_settings.limits import DEFAULT_BATCHED_TOKENS_CPU, DEFAULT_LIMITS, Limits
from inflight_settings.scheduling import SchedulingSettings
from inflight_settings.setting import setting

DType = Literal["auto", "float32", "bfloat16", "float16"]
Device = Literal["auto", "cpu", "cuda"]
Quantization = Literal["none", "int8", "int4"]
KeepWeights = Literal["auto", "on", "off"]
KVCacheDType = Literal["auto", "fp8"]
AttentionBackendName = Literal["auto", "flash-attn-3", "triton", "cpu-native", "torch-sdpa"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]


@dataclass(frozen=True, slots=True)
class EngineConfig(SchedulingSettings):
    """Configuration of the engine process, made once from flags or a file.

    Attributes:
        model: `builtin://smollm2`, a folder with a Hugging Face model, a Hugging Face name (also `hf://NAME`), or the
            URL of a folder in an object store or on an HTTP server.
        block_events: report which blocks can be found by content, and which are lost.
    """

    model: str
    revision: str = setting("main", "branch, tag or commit of a Hugging Face model")
    model_cache: str | None = setting(
        None,
        "folder of hub models and remote weights that engines share: the first reads the source, the others the folder",
        metavar="FOLDER",
    )
    model_cache_size: int = setting(
        0,
        "most bytes in model_cache, as in 500Gi; models that were not used for longest are removed",
        ge=0,
        unit="bytes",
    )
    peers_file: str | None = setting(
        None,
        "JSON with addresses of engines by pod: weights of a remote model are read from those that have them, through "
        "model_cache, before the source; need not exist",
        metavar="FILE",
    )
    peers_tpot: float | None = setting(
        None,
        "peers read nothing from this engine while its steps take longer than so many seconds (default: the shortest "
        "tpot of a service_class)",
        ge=0.001,
        unit="seconds",
    )
    device: Device = setting("auto", "auto takes a GPU when there is one")
    dtype: DType = setting("auto", "of weights and KV cache; auto: bfloat16 where the device is faster in it")
    quantization: Quantization = setting("none", "of weights, on a CPU with the native kernels: int8 or int4")
    keep_weights: KeepWeights = setting(
        "auto",
        "on a CPU with the native kernels, keep packed weights in memory that outlives the engine process, for the "
        "next one; auto: where shared memory has huge pages",
    )
    attention_backend: AttentionBackendName = setting("auto", "auto takes the fastest that can serve the model here")
    tensor_parallel_size: int = setting(1, "GPUs that share each layer", ge=1)
    num_threads: int | None = setting(
        None,
        "on CPU, threads that compute (default: the CPUs it may use, less one where there are more than four)",
        ge=1,
    )
    enforce_eager: bool = setting(False, "disable CUDA graphs")
    async_scheduling: bool = setting(True, "on a GPU, wait for each step before the next is scheduled")
    batch_invariant: bool = setting(
        False,
        "on a GPU, the same tokens whatever else is in the batch, at some cost in speed; CPU kernels always do",
    )
    max_model_len: int | None = setting(None, "longest prompt plus output, in tokens (default: the model's own)", ge=1)
    max_num_seqs: int = setting(DEFAULT_LIMITS.max_num_seqs, "capacity: most requests running at once", ge=1)
    max_num_batched_tokens: int | None = setting(
        None,
        "capacity: most tokens computed in one step (default: "
        f"{DEFAULT_LIMITS.max_num_batched_tokens} on a GPU, {DEFAULT_BATCHED_TOKENS_CPU} on a CPU)",
        ge=1,
    )
    block_size: int = setting(16, "tokens in a KV block", ge=1)
    num_kv_blocks: int | None = setting(None, "blocks of the KV cache", ge=1, exclusive="cache")
    kv_cache_memory: int | None = setting(
        None,
        "memory of the KV cache, as in 2Gi (default: a share of what is free)",
        ge=1,
        unit="bytes",
        exclusive="cache",
    )
    kv_cache_dtype: KVCacheDType = setting(
        "auto", "auto is that of --dtype; fp8, on GPUs that have it, halves the cache"
    )
    gpu_memory_utilization: float = setting(
        0.9,
        "share of a GPU's memory for weights, activations and KV cache together",
        ge=0.05,
        le=1,
        metavar="SHARE",
    )
    swap_space: int = setting(
        0,
        "host memory for KV blocks that the cache evicts, those of preempted requests too, as in 4Gi; 0: none",
        ge=0,
        unit="bytes",
    )
    disk_space: int = setting(
        0,
        "disk space for KV blocks behind the host memory of swap_space, which a restart finds again, as in 100Gi; 0: "
        "none",
        ge=0,
        unit="bytes",
    )
    disk_path: str | None = setting(
        None, "folder for disk_space; engines that share it have a file each", metavar="FOLDER"
    )
    sleep_after: float | None = setting(
        None,
        "on a CPU, seconds without requests after which the memory of the KV cache and of swap_space is given back "
        "until the next request, which finds nothing there (default: never)",
        ge=1,
        unit="seconds",
    )
    record: str | None = setting(
        None,
        "write arrivals and scheduling decisions to this file, for `inflight-engine replay FILE`",
        metavar="FILE",
    )
    seed: int | None = setting(
        None,
        "base of the random streams of requests without a seed (default: another one at each start)",
        ge=0,
        le=2**63 - 1,
    )
    log_level: LogLevel = setting("info", "debug adds a line for each request")
    log_format: LogFormat = setting("text", "json: one JSON object a line, in all processes")
    block_events: bool = False

    def capacity(self, device: str) -> Limits:
        """Return the highest limits on a type of device, `cpu` or `cuda`."""
        default = DEFAULT_BATCHED_TOKENS_CPU if device == "cpu" else DEFAULT_LIMITS.max_num_batched_tokens
        return Limits(self.max_num_seqs, self.max_num_batched_tokens or default)
