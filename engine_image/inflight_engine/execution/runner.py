"""The runner: holds the model and the KV cache, and turns a step plan into tokens."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch

from inflight_engine.config import EngineConfig
from inflight_engine.execution.attention import choose_backend
from inflight_engine.execution.batch import PersistentBatch
from inflight_engine.execution.device import choose_device, choose_dtype
from inflight_engine.execution.kv_size import KVDemand, num_kv_blocks
from inflight_engine.execution.resources import read_resources
from inflight_engine.execution.sampler import sample
from inflight_engine.models.config import DecoderConfig, load_model_config
from inflight_engine.models.llama import LlamaModel
from inflight_engine.models.source import resolve
from inflight_engine.models.weights import open_weights
from inflight_engine.request import TokenIds
from inflight_engine.scheduling.plan import StepPlan


@dataclass(frozen=True, slots=True)
class RunnerInfo:
    """What was loaded.

    Attributes:
        max_model_len: tokens; the configured one, or the model's own.
        kv_bytes_per_token: 2 x layers x kv_heads x head_dim x sizeof(dtype).
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
    load_seconds: float


class Runner:
    """Loads the model and allocates the KV cache.

    Raises:
        ModelSourceError, UnsupportedModelError, KVCacheSizeError, ValueError: all are ValueErrors whose message is one
            sentence that says what to do.
    """

    def __init__(self, config: EngineConfig) -> None:
        started = time.monotonic()
        files = resolve(config.model, config.revision)
        model_config = load_model_config(files)
        max_model_len = _max_model_len(config, model_config)
        device = choose_device(config.device)
        dtype = choose_dtype(config.dtype, device)
        torch.set_num_threads(read_resources().cpus)
        self._model = LlamaModel(model_config, open_weights(files, model_config), dtype, device)
        kv_bytes_per_token = model_config.kv_bytes_per_token(dtype.itemsize)
        on_gpu = device.type == "cuda"
        available = torch.cuda.mem_get_info(device)[0] if on_gpu else read_resources().memory
        num_blocks = num_kv_blocks(config, KVDemand(kv_bytes_per_token, max_model_len, on_gpu, available))
        backend = choose_backend(device)
        self._attention = backend(model_config, num_blocks, config.block_size, dtype, device)
        self._batch = PersistentBatch(config.max_num_seqs, max_model_len, config.block_size)
        self._device = device
        self.info = RunnerInfo(
            num_blocks=num_blocks,
            block_size=config.block_size,
            max_model_len=max_model_len,
            kv_bytes_per_token=kv_bytes_per_token,
            vocab_size=model_config.vocab_size,
            device=str(device),
            dtype=str(dtype).removeprefix("torch."),
            attention_backend=backend.name,
            load_seconds=time.monotonic() - started,
        )

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> TokenIds:
        """Run one step.

        Returns:
            int32: one token for each of `plan.sampled_slots`.
        """
        self._batch.apply(plan)
        if plan.num_tokens == 0:
            return np.empty(0, np.int32)
        packed = self._batch.pack(plan)
        self._attention.prepare(packed.attention)
        hidden = self._model.hidden_states(
            torch.from_numpy(packed.token_ids).to(self._device),
            torch.from_numpy(packed.positions).to(self._device),
            self._attention.forward,
        )
        if len(packed.sampled_rows) == 0:
            return np.empty(0, np.int32)
        logits = self._model.logits(hidden[torch.from_numpy(packed.sampled_rows).to(self._device)])
        token_ids = sample(logits, self._batch.sampling(packed.sampled_slots))
        self._batch.append(packed.sampled_slots, token_ids)
        return token_ids


def _max_model_len(config: EngineConfig, model_config: DecoderConfig) -> int:
    own = model_config.max_position_embeddings
    if config.max_model_len is None:
        return own
    if not 1 <= config.max_model_len <= own:
        raise ValueError(f"max_model_len must be between 1 and {own} (the model's own), not {config.max_model_len}")
    return config.max_model_len
