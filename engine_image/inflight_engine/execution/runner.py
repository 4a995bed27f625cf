"""The runner: holds the model and the KV cache, and turns a step plan into tokens."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from inflight_engine.config import EngineConfig
from inflight_engine.execution.attention import choose_backend
from inflight_engine.execution.attention.base import AttentionSpec
from inflight_engine.execution.batch import PersistentBatch
from inflight_engine.execution.device import choose_device, choose_dtype
from inflight_engine.execution.host_cache import HostCache
from inflight_engine.execution.kv_size import KVDemand, num_host_blocks, num_kv_blocks
from inflight_engine.execution.load import load_model
from inflight_engine.execution.resources import read_resources
from inflight_engine.execution.sampling import SamplingState
from inflight_engine.models.config import DecoderConfig, load_model_config
from inflight_engine.models.source import resolve
from inflight_engine.output import StepOutput
from inflight_engine.request import NO_TOKENS
from inflight_engine.scheduling.plan import StepPlan

_NOTHING = StepOutput(NO_TOKENS, [])


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
    """Loads the model and allocates the KV cache.

    Raises:
        ModelSourceError, UnsupportedModelError, KVCacheSizeError, ValueError: all are ValueErrors whose message is one
            sentence that says what to do.
    """

    lookahead = False

    def __init__(self, config: EngineConfig) -> None:
        started = time.monotonic()
        files = resolve(config.model, config.revision)
        model_config = load_model_config(files)
        max_model_len = _max_model_len(config, model_config)
        device = choose_device(config.device)
        dtype = choose_dtype(config.dtype, device)
        torch.set_num_threads(config.num_threads or read_resources().cpus)
        self._model = load_model(config, files, model_config, dtype, device)
        kv_bytes_per_token = model_config.shape.kv_bytes_per_token(dtype.itemsize)
        on_gpu = device.type == "cuda"
        host_memory = read_resources().memory
        available = torch.cuda.mem_get_info(device)[0] if on_gpu else host_memory
        num_blocks = num_kv_blocks(config, KVDemand(kv_bytes_per_token, max_model_len, on_gpu, available))
        spec = AttentionSpec(
            shape=model_config.shape,
            num_blocks=num_blocks,
            block_size=config.block_size,
            dtype=dtype,
            cache_dtype=dtype,
            device=device,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=max_model_len,
            batch_invariant=config.batch_invariant,
        )
        backend = choose_backend(config.attention_backend, spec)
        self._attention = backend(spec)
        self._batch = PersistentBatch(config.max_num_seqs, max_model_len, config.block_size)
        self._sampling = SamplingState(config.max_num_seqs)
        self._device = device
        block_bytes = kv_bytes_per_token * config.block_size
        self._host_cache = HostCache(
            num_host_blocks(config.swap_space, block_bytes, host_memory - (0 if on_gpu else num_blocks * block_bytes)),
            config.block_size,
            block_bytes,
            device,
            self._attention,
        )
        self.info = RunnerInfo(
            num_blocks=num_blocks,
            block_size=config.block_size,
            max_model_len=max_model_len,
            kv_bytes_per_token=kv_bytes_per_token,
            vocab_size=model_config.vocab_size,
            device=str(device),
            dtype=str(dtype).removeprefix("torch."),
            attention_backend=backend.name,
            num_host_blocks=self._host_cache.num_blocks,
            copy_tokens_per_second=(
                self._host_cache.measure_copy_rate(num_blocks) if self._host_cache.num_blocks else None
            ),
            load_seconds=time.monotonic() - started,
        )

    def launch(self, plan: StepPlan) -> None:
        self._output = self._execute(plan)

    def collect(self) -> StepOutput:
        return self._output

    @torch.inference_mode()
    def _execute(self, plan: StepPlan) -> StepOutput:
        """Run one step: what the plan copies out, what it changes, what it copies in, then its tokens."""
        for preemption in plan.preemptions:
            self._host_cache.copy_out(preemption.block_ids.tolist(), preemption.host_block_ids)
        self._batch.apply(plan)
        self._sampling.apply(plan)
        for start in plan.starts:
            if start.host_block_ids:
                self._host_cache.copy_in(start.host_block_ids, start.block_ids[: len(start.host_block_ids)].tolist())
        if plan.num_tokens == 0:
            return _NOTHING
        packed = self._batch.pack(plan)
        self._attention.prepare(packed.attention)
        hidden = self._model.hidden_states(
            self._tensor(packed.token_ids), self._tensor(packed.positions), self._attention
        )
        if len(packed.sampled_slots) == 0:
            return _NOTHING
        if packed.sampled_rows is not None:
            hidden = hidden[self._tensor(packed.sampled_rows)]
        output = self._sampling.sample(self._model.logits(hidden), packed.sampled_slots, packed.sampled_positions)
        self._batch.append(packed.sampled_slots, output.token_ids)
        return output

    def _tensor(self, array: npt.NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)


def _max_model_len(config: EngineConfig, model_config: DecoderConfig) -> int:
    own = model_config.max_position_embeddings
    if config.max_model_len is None:
        return own
    if not 1 <= config.max_model_len <= own:
        raise ValueError(f"max_model_len must be between 1 and {own} (the model's own), not {config.max_model_len}")
    return config.max_model_len
