"""Makes a runner from a configuration, stage by stage: device and dtype, attention, weights, KV cache, graphs."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version

import torch

from inflight_engine.execution.attention import choose_backend
from inflight_engine.execution.attention.base import AttentionBackend, AttentionSpec, StepShape
from inflight_engine.execution.batch import PersistentBatch
from inflight_engine.execution.device import choose_device, choose_dtype
from inflight_engine.execution.forward import Forward
from inflight_engine.execution.graphs import CudaCapture, StepGraphs
from inflight_engine.execution.host_cache import HostCache
from inflight_engine.execution.kv_calibration import calibrate
from inflight_engine.execution.load import ModelConfig, is_in_kernels, load_config, load_model
from inflight_engine.execution.memory.kv_size import (
    POD_MEMORY_RESERVE,
    HostMemory,
    KVDemand,
    is_given,
    num_host_blocks,
    num_kv_blocks,
)
from inflight_engine.execution.memory.numa import interleave_memory, nodes_of
from inflight_engine.execution.memory.resources import choose_num_threads, read_resources
from inflight_engine.execution.memory.staging import Staging, step_bytes
from inflight_engine.execution.memory_profile import measure
from inflight_engine.execution.pieces import Pieces
from inflight_engine.execution.runner import Runner
from inflight_engine.execution.sampling.grammar_masks import GrammarMasks
from inflight_engine.execution.sampling.sampler import Sampler, make_sampler
from inflight_engine.execution.step_shapes import graph_shapes
from inflight_engine.execution.token_feed import TokenFeed
from inflight_engine.grammars.compiled import Grammars
from inflight_engine.models.checkpoints.kv_scales import load_kv_scales
from inflight_engine.models.checkpoints.source import ModelFiles, resolve_configured
from inflight_engine.models.checkpoints.transformers_config import TransformersConfig
from inflight_engine.models.parallel import ALONE, Parallel
from inflight_engine.models.protocol import Model
from inflight_engine.models.remote.cache import first_problem
from inflight_engine.models.version import digest_of
from inflight_engine.native.library import variant
from inflight_engine.runner_info import RunnerInfo
from inflight_settings.engine import EngineConfig

log = logging.getLogger(__name__)


def build_runner(config: EngineConfig, parallel: Parallel = ALONE, grammars: Grammars | None = None) -> Runner:
    """Load the model, allocate the KV cache and capture the graphs.

    Args:
        parallel: the runners that share every layer, each with its part of the weights and of the KV cache; all are
            given the same plans. `kv_cache_memory` and `swap_space` are of each.
        grammars: compiles those of requests; None: no request has one.

    Raises:
        ModelSourceError, UnsupportedModelError, KVCacheSizeError, ValueError: all are ValueErrors whose message is one
            sentence that says what to do.
    """
    started = time.monotonic()
    target = choose_target(config)
    backend, spec = choose_attention(config, target, parallel)  # before the weights, which may take minutes
    model = load_model(config, target.files, target.model_config, target.dtype, target.device, parallel)
    weights_seconds = time.monotonic() - started
    spec = choose_kv_scales(target, spec, model, parallel)
    graph_shapes = choose_graph_shapes(config, target.device)
    spec = size_cache(config, spec, model, backend, graph_shapes, parallel)
    attention = backend(spec)
    available = memory_beside_cache(spec, parallel)
    host_cache = make_host_cache(config, spec, attention, parallel, available)
    feed = TokenFeed(spec.max_num_seqs, spec.device, parallel)
    sampler = make_sampler(spec.max_num_seqs, spec.shape.vocab_size, spec.device)
    forward = make_forward(model, attention, feed, spec, graph_shapes)
    graphs = capture_graphs(model, forward, feed, sampler, spec, graph_shapes, parallel) if graph_shapes else None
    swap_bytes = host_cache.num_blocks * spec.block_size * _kv_bytes_per_token(spec)
    info = RunnerInfo(
        num_blocks=spec.num_blocks,
        block_size=spec.block_size,
        max_model_len=min(spec.max_model_len, spec.num_blocks * spec.block_size),
        kv_bytes_per_token=target.model_config.shape.kv_bytes_per_token(spec.cache_dtype.itemsize),
        vocab_size=spec.shape.vocab_size,
        device=str(spec.device),
        dtype=str(spec.dtype).removeprefix("torch."),
        attention_backend=backend.name,
        num_host_blocks=host_cache.num_blocks,
        copy_tokens_per_second=host_cache.measure_copy_rate(spec.num_blocks) if host_cache.num_blocks else None,
        load_seconds=time.monotonic() - started,
        weights_seconds=weights_seconds,
        memory_left=max(0, parallel.size * (available - swap_bytes) - POD_MEMORY_RESERVE),
        digest=digest_of(target.files),
        can_sleep=spec.device.type == "cpu" and parallel.size == 1,
        cache_problem=first_problem(),
        kv_identity=kv_identity(config, spec, backend.name) if parallel.size == 1 else "",
    )
    return Runner(
        info,
        model,
        forward,
        feed,
        sampler,
        PersistentBatch(spec.max_num_seqs, spec.max_model_len, spec.block_size),
        host_cache,
        GrammarMasks(grammars),
        graphs=graphs,
        # If only some ranks cut a step into pieces, the ranks would deadlock.
        pieces=Pieces(torch.cuda.empty_cache) if parallel.size == 1 else None,
        lookahead=looks_ahead(config, target.device),
    )


@dataclass(frozen=True, slots=True)
class Target:
    """The model, the device and the number type of a runner.

    Attributes:
        max_model_len: longest sequence in tokens.
    """

    files: ModelFiles
    model_config: ModelConfig
    device: torch.device
    dtype: torch.dtype
    max_model_len: int


def choose_target(config: EngineConfig) -> Target:
    """Find the model, and choose device, dtype, torch's number of threads and where memory lies.

    Raises:
        ValueError: as `build_runner`.
    """
    files = resolve_configured(config)
    model_config = load_config(files)
    max_model_len = _max_model_len(config, model_config)
    device = choose_device(config.device)
    if config.sleep_after is not None and device.type != "cpu":
        raise ValueError("sleep_after is supported on a CPU only; leave it out on a GPU")
    dtype = choose_dtype(config.dtype, device, in_kernels=is_in_kernels(config, model_config, device))
    torch.set_num_threads(choose_num_threads(config.num_threads, read_resources().cpus))
    if device.type == "cpu":
        interleave_memory(nodes_of(os.sched_getaffinity(0)))
    return Target(files, model_config, device, dtype, max_model_len)


def choose_attention(
    config: EngineConfig, target: Target, parallel: Parallel
) -> tuple[type[AttentionBackend], AttentionSpec]:
    """Return the backend and its spec; the number of blocks is not known yet, and 0.

    Raises:
        ValueError: as `build_runner`.
    """
    if config.batch_invariant:
        make_batch_invariant(config, target.model_config, target.device)
    spec = AttentionSpec(
        shape=target.model_config.shape.for_rank(parallel.size),
        num_blocks=0,
        block_size=config.block_size,
        dtype=target.dtype,
        cache_dtype=_cache_dtype(config.kv_cache_dtype, target.dtype, target.device),
        device=target.device,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.capacity(target.device.type).max_num_batched_tokens,
        max_model_len=target.max_model_len,
        batch_invariant=config.batch_invariant,
    )
    return choose_backend(config.attention_backend, spec), spec


def choose_kv_scales(target: Target, spec: AttentionSpec, model: Model, parallel: Parallel) -> AttentionSpec:
    """Return `spec` with the scales of a cache in fp8: the checkpoint's, else calibrated; any other cache has none.

    Raises:
        ValueError: as `load_kv_scales` and `calibrate`.
    """
    if spec.cache_dtype != torch.float8_e4m3fn:
        return spec
    shape = target.model_config.shape
    stored = load_kv_scales(target.files, shape.num_layers, shape.num_kv_heads)
    if stored is None:
        scales, source = calibrate(model, spec), "calibrated with random tokens"
    else:
        first = parallel.rank * shape.num_kv_heads // parallel.size
        scales = stored[:, :, first : first + spec.shape.num_kv_heads].contiguous().to(spec.device)
        source = "of the checkpoint"
    keys, values = (f"{part.min():.3g} to {part.max():.3g}" for part in scales.unbind(1))
    log.info("KV cache in fp8: scales %s, of keys %s, of values %s", source, keys, values)
    return replace(spec, kv_scales=scales)


def choose_graph_shapes(config: EngineConfig, device: torch.device) -> tuple[StepShape, ...]:
    """Return the shapes of steps that get a CUDA graph, ascending; empty without graphs."""
    if device.type != "cuda" or config.enforce_eager:
        return ()
    return graph_shapes(config.max_num_seqs, config.capacity(device.type).max_num_batched_tokens)


def size_cache(
    config: EngineConfig,
    spec: AttentionSpec,
    model: Model,
    backend: type[AttentionBackend],
    graph_shapes: tuple[StepShape, ...],
    parallel: Parallel,
) -> AttentionSpec:
    """Return `spec` with as many blocks as the memory beside the weights holds, on a GPU measured by a step.

    Raises:
        KVCacheSizeError: too few.
    """
    measured = spec.device.type == "cuda" and not is_given(config)
    memory = measure(model, backend, spec, graph_shapes) if measured else _host_memory(parallel)
    demand = KVDemand(_kv_bytes_per_token(spec), spec.max_model_len, spec.block_size)
    return replace(spec, num_blocks=parallel.minimum(num_kv_blocks(config, demand, memory)))


def memory_beside_cache(spec: AttentionSpec, parallel: Parallel) -> int:
    """Return the bytes of host memory that this rank can take beside the KV cache, negative where that is too large. On
    a CPU it is allocated, but no page of it is taken yet."""
    in_cache = spec.num_blocks * spec.block_size * _kv_bytes_per_token(spec) if spec.device.type == "cpu" else 0
    return _host_memory(parallel).available - in_cache


def make_host_cache(
    config: EngineConfig, spec: AttentionSpec, attention: AttentionBackend, parallel: Parallel, available: int
) -> HostCache:
    """Allocate host memory behind the KV cache. `available`: as of `memory_beside_cache`.

    Raises:
        KVCacheSizeError: `swap_space` is more than there is, or wrong.
    """
    block_bytes = _kv_bytes_per_token(spec) * spec.block_size
    num_blocks = parallel.minimum(num_host_blocks(config.swap_space, block_bytes, available))
    if num_blocks and not config.keeps_evicted:
        log.warning("no host memory is taken: nothing goes there without the prefix cache or with preemption recompute")
        num_blocks = 0
    return HostCache(num_blocks, spec.block_size, block_bytes, spec.device, attention, parallel)


def kv_identity(config: EngineConfig, spec: AttentionSpec, backend: str) -> str:
    """Return a digest of what keys and values depend on beside tokens and weights."""
    scales = b"" if spec.kv_scales is None else spec.kv_scales.cpu().view(torch.uint8).numpy().tobytes()
    facts = [
        version("inflight"),
        spec.device.type,
        variant() if spec.device.type == "cpu" else "",
        str(spec.dtype),
        backend,
        str(spec.block_size),
        str(_kv_bytes_per_token(spec)),
        config.quantization,
        config.kv_cache_dtype,
        str(config.batch_invariant),
    ]
    return hashlib.sha256("\0".join(facts).encode() + scales).hexdigest()


def make_forward(
    model: Model, attention: AttentionBackend, feed: TokenFeed, spec: AttentionSpec, graph_shapes: Sequence[StepShape]
) -> Forward:
    """Make the forward pass, with buffers for the inputs of the largest step."""
    copies = spec.device.type != "cpu" or len(graph_shapes) > 0
    staging = Staging(step_bytes(spec.max_num_seqs, spec.max_num_batched_tokens), spec.device, copies=copies)
    return Forward(model, attention, feed, staging)


def capture_graphs(
    model: Model,
    forward: Forward,
    feed: TokenFeed,
    sampler: Sampler,
    spec: AttentionSpec,
    graph_shapes: Sequence[StepShape],
    parallel: Parallel,
) -> StepGraphs | None:
    """Capture steps of these shapes; None: it fails for this model, and the log says why."""
    graphs = StepGraphs(model, forward, feed, sampler, graph_shapes, spec.shape.vocab_size, spec.device)
    # If only some ranks padded their steps, the ranks would deadlock.
    return graphs if parallel.minimum(int(graphs.try_capture(CudaCapture()))) else None


def looks_ahead(config: EngineConfig, device: torch.device) -> bool:
    """Return whether a step may be launched before the previous one is collected. A CPU has nothing to gain by it:
    while it schedules it does not compute."""
    return device.type == "cuda" and config.async_scheduling


def make_batch_invariant(config: EngineConfig, model_config: ModelConfig, device: torch.device) -> None:
    """Make products independent of the other tokens in a step; attention has its own ways.

    Raises:
        ValueError: no forward pass of this model here is so.
    """
    if device.type == "cpu":
        if not is_in_kernels(config, model_config, device):
            raise ValueError(
                "batch_invariant is not supported on a CPU where torch computes the model, as with this model or these "
                "options; turn it off"
            )
        return
    if isinstance(model_config, TransformersConfig):
        raise ValueError(
            f"batch_invariant is not supported with {model_config.shape.architecture}, which runs through "
            "transformers' modules; turn it off"
        )
    from inflight_engine.execution.invariant_matmul import use_for_all_products  # imports Triton: a second

    use_for_all_products()


def _kv_bytes_per_token(spec: AttentionSpec) -> int:
    """Return the bytes of keys and values of one token on this rank."""
    return spec.shape.kv_bytes_per_token(spec.cache_dtype.itemsize)


def _host_memory(parallel: Parallel) -> HostMemory:
    """Return the host memory that each rank can still take."""
    resources = read_resources()
    return HostMemory(resources.memory // parallel.size, resources.memory_limited)


def _cache_dtype(name: str, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    if name == "fp8" and device.type == "cpu":
        raise ValueError("kv_cache_dtype fp8 needs a GPU; on a CPU set it to auto")
    return torch.float8_e4m3fn if name == "fp8" else dtype


def _max_model_len(config: EngineConfig, model_config: ModelConfig) -> int:
    own = model_config.shape.max_position_embeddings
    if config.max_model_len is None:
        return own
    if not 1 <= config.max_model_len <= own:
        raise ValueError(f"max_model_len must be between 1 and {own} (the model's own), not {config.max_model_len}")
    return config.max_model_len
