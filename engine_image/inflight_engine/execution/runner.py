"""The runner: holds the model and the KV cache, and turns a step plan into tokens."""

from __future__ import annotations

import importlib.util
import time
from dataclasses import dataclass, replace

import torch

from inflight_engine.config import KV_CACHE_DTYPES, EngineConfig
from inflight_engine.execution.attention import choose_backend
from inflight_engine.execution.attention.base import AttentionSpec
from inflight_engine.execution.device import choose_device, choose_dtype
from inflight_engine.execution.graphs import CudaCapture, ladder
from inflight_engine.execution.host_cache import HostCache
from inflight_engine.execution.load import ModelConfig, is_in_kernels, load_config, load_model
from inflight_engine.execution.memory.kv_size import HostMemory, KVDemand, is_given, num_host_blocks, num_kv_blocks
from inflight_engine.execution.memory.resources import choose_num_threads, read_resources
from inflight_engine.execution.memory_profile import measure
from inflight_engine.execution.steps import make_steps
from inflight_engine.models.parallel import ALONE, Parallel
from inflight_engine.models.source import resolve
from inflight_engine.models.transformers_config import TransformersConfig
from inflight_engine.output import StepOutput
from inflight_engine.scheduling.plan import StepPlan


@dataclass(frozen=True, slots=True)
class RunnerInfo:
    """What was loaded.

    Attributes:
        max_model_len: tokens; the configured one, or the model's own.
        kv_bytes_per_token: 2 x layers x kv_heads x head_dim x sizeof(dtype).
        num_host_blocks: blocks of host memory for swapped requests; 0 without swap space.
        copy_tokens_per_second: tokens whose keys and values are copied one way between device and host memory in a
            second, measured; None without swap space.
        load_seconds: from the beginning of loading until the first step can run.
    """

    num_blocks: int
    block_size: int
    max_model_len: int
    kv_bytes_per_token: int
    vocab_size: int
    device: str
    dtype: str
    attention_backend: str
    num_host_blocks: int
    copy_tokens_per_second: float | None
    load_seconds: float


class Runner:
    """Loads the model, sizes and allocates the KV cache, captures graphs; then computes steps. A `StepExecutor`.

    A GPU looks one step ahead unless `async_scheduling` is off. A CPU has nothing to gain by it: while it schedules it
    does not compute.

    Args:
        parallel: the runners that share every layer, each with its part of the weights and of the KV cache; all are
            given the same plans. `kv_cache_memory` and `swap_space` are of each.

    Raises:
        ModelSourceError, UnsupportedModelError, KVCacheSizeError, ValueError: all are ValueErrors whose message is one
            sentence that says what to do.
    """

    def __init__(self, config: EngineConfig, parallel: Parallel = ALONE) -> None:
        started = time.monotonic()
        files = resolve(config.model, config.revision)
        model_config = load_config(files)
        shape = model_config.shape.for_rank(parallel.size)
        max_model_len = _max_model_len(config, model_config)
        device = choose_device(config.device)
        dtype = choose_dtype(config.dtype, device, in_kernels=is_in_kernels(config, model_config, device))
        torch.set_num_threads(choose_num_threads(config.num_threads, read_resources().cpus))
        if config.batch_invariant:
            _make_batch_invariant(config, model_config, device)
        spec = AttentionSpec(
            shape=shape,
            num_blocks=0,  # not known yet
            block_size=config.block_size or 0,  # the backend's own
            dtype=dtype,
            cache_dtype=_cache_dtype(config.kv_cache_dtype, dtype, device),
            device=device,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=max_model_len,
            batch_invariant=config.batch_invariant,
        )
        backend = choose_backend(config.attention_backend, spec)  # before the weights, which may take minutes
        spec = backend.with_block_size(spec)
        model = load_model(config, files, model_config, dtype, device, parallel)
        on_gpu = device.type == "cuda"
        graph_sizes = ladder(config.max_num_seqs) if on_gpu and not config.enforce_eager else ()
        host_memory = read_resources().memory // parallel.size
        kv_bytes_per_token = shape.kv_bytes_per_token(spec.cache_dtype.itemsize)
        measured = on_gpu and not is_given(config)
        memory = measure(model, backend, spec, graph_sizes) if measured else HostMemory(host_memory)
        demand = KVDemand(kv_bytes_per_token, max_model_len, spec.block_size)
        num_blocks = parallel.minimum(num_kv_blocks(config, demand, memory))
        spec = replace(spec, num_blocks=num_blocks)
        block_bytes = kv_bytes_per_token * spec.block_size
        attention = backend(spec)
        host_memory -= 0 if on_gpu else num_blocks * block_bytes
        host_cache = HostCache(
            parallel.minimum(num_host_blocks(config.swap_space, block_bytes, host_memory)),
            spec.block_size,
            block_bytes,
            device,
            attention,
        )
        self.lookahead = on_gpu and config.async_scheduling
        capture = CudaCapture() if graph_sizes else None
        self._steps = make_steps(
            model, attention, spec, host_cache, graph_sizes, capture, lookahead=self.lookahead, parallel=parallel
        )
        self.info = RunnerInfo(
            num_blocks=num_blocks,
            block_size=spec.block_size,
            max_model_len=max_model_len,
            kv_bytes_per_token=model_config.shape.kv_bytes_per_token(spec.cache_dtype.itemsize),
            vocab_size=shape.vocab_size,
            device=str(device),
            dtype=str(dtype).removeprefix("torch."),
            attention_backend=backend.name,
            num_host_blocks=host_cache.num_blocks,
            copy_tokens_per_second=host_cache.measure_copy_rate(num_blocks) if host_cache.num_blocks else None,
            load_seconds=time.monotonic() - started,
        )

    def launch(self, plan: StepPlan) -> None:
        self._steps.launch(plan)

    def collect(self) -> StepOutput:
        return self._steps.collect()


def _cache_dtype(name: str, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    if name not in KV_CACHE_DTYPES:
        raise ValueError(f"kv_cache_dtype must be {' or '.join(KV_CACHE_DTYPES)}, not {name}")
    if name == "fp8" and device.type == "cpu":
        raise ValueError("kv_cache_dtype fp8 needs a GPU; on a CPU set it to auto")
    return torch.float8_e4m3fn if name == "fp8" else dtype


def _make_batch_invariant(config: EngineConfig, model_config: ModelConfig, device: torch.device) -> None:
    """See to it that a token's result does not depend on the others in its step; attention has its own ways.

    Raises:
        ValueError: no forward pass of this model here is so.
    """
    if device.type == "cpu":
        if not is_in_kernels(config, model_config, device):
            raise ValueError(
                "batch_invariant cannot be had on a CPU where torch computes the model, as with this one or with these "
                "options; turn it off"
            )
        return
    if isinstance(model_config, TransformersConfig):
        raise ValueError(
            f"batch_invariant cannot be had with {model_config.shape.architecture}, which runs through transformers' "
            "modules; turn it off"
        )
    if importlib.util.find_spec("triton") is None:
        raise ValueError("batch_invariant on a GPU needs the package triton; install it or turn batch_invariant off")
    from inflight_engine.execution.invariant_matmul import use_for_all_products  # imports Triton: a second

    use_for_all_products()


def _max_model_len(config: EngineConfig, model_config: ModelConfig) -> int:
    own = model_config.shape.max_position_embeddings
    if config.max_model_len is None:
        return own
    if not 1 <= config.max_model_len <= own:
        raise ValueError(f"max_model_len must be between 1 and {own} (the model's own), not {config.max_model_len}")
    return config.max_model_len
