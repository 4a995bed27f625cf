"""The choice of the code that computes a model, and its weights in memory."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
from importlib.metadata import version
from typing import TypeAlias

import torch

from inflight_engine.execution.cpu_decoder import NativeDecoder
from inflight_engine.models.checkpoints.config import (
    DecoderConfig,
    UnsupportedModelError,
    UnsupportedWeightsError,
    load_model_config,
)
from inflight_engine.models.checkpoints.fp8_weights import Fp8Weights
from inflight_engine.models.checkpoints.packed_weights import PackedWeights
from inflight_engine.models.checkpoints.source import ModelFiles
from inflight_engine.models.checkpoints.transformers_config import TransformersConfig, load_transformers_config
from inflight_engine.models.checkpoints.weight_source import WeightSource
from inflight_engine.models.checkpoints.weights import open_weights
from inflight_engine.models.linear import NONE_KEPT, KeptFormats
from inflight_engine.models.llama import LlamaModel
from inflight_engine.models.ops import Ops, TorchOps
from inflight_engine.models.parallel import Parallel
from inflight_engine.models.protocol import Model
from inflight_engine.models.transformers_model import TransformersModel
from inflight_engine.models.version import digest_of
from inflight_engine.native.kept_weights import KeptWeights, has_huge_pages, inherited
from inflight_engine.native.library import variant
from inflight_settings.engine import EngineConfig

log = logging.getLogger(__name__)

ModelConfig: TypeAlias = DecoderConfig | TransformersConfig


def load_config(files: ModelFiles) -> ModelConfig:
    """Read a model's configuration: the native decoder's, or else what transformers' modules make of it.

    Raises:
        UnsupportedModelError: neither can compute it; the message says why.
        ValueError: a field is missing or the file cannot be read.
    """
    try:
        return load_model_config(files)
    except UnsupportedWeightsError:
        raise
    except UnsupportedModelError as error:
        if files.gguf is not None:
            raise
        if importlib.util.find_spec("transformers") is None:
            raise UnsupportedModelError(f"{error}; install transformers for other architectures") from error
        return load_transformers_config(files)


def is_in_kernels(config: EngineConfig, model_config: ModelConfig, device: torch.device) -> bool:
    """Return whether the CPU kernels can compute the whole model with bfloat16 weights."""
    if isinstance(model_config, TransformersConfig):
        return False
    return NativeDecoder.why_not(config, model_config, torch.bfloat16, device) is None


def load_model(
    config: EngineConfig,
    files: ModelFiles,
    model_config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    parallel: Parallel,
) -> Model:
    """Make the fastest forward pass for a model on a device.

    Raises:
        ValueError: `quantization` or `tensor_parallel_size` where no forward pass has it, or weights that are not of
            this configuration.
    """
    refuse_options(config, model_config)
    if isinstance(model_config, TransformersConfig):
        if files.remote is not None:
            raise ValueError(
                f"{model_config.shape.architecture} runs through transformers' modules, which read weights from files: "
                f"serve it from a folder or from hf://, not from {files.source}"
            )
        return TransformersModel(model_config, files, dtype, device)
    max_model_len = config.max_model_len or model_config.max_position_embeddings
    reason = NativeDecoder.why_not(config, model_config, dtype, device)
    if reason is None:

        def opened() -> WeightSource:
            weights = open_weights(files, model_config)
            if isinstance(weights, Fp8Weights | PackedWeights):
                log.info("quantized weights of the checkpoint are dequantized: the CPU kernels have their own formats")
            return weights

        memory, identity = _kept(config, files), _identity(config, files, model_config, dtype)
        return NativeDecoder(model_config, opened, dtype, config.quantization, max_model_len, memory, identity)
    weights = open_weights(files, model_config, whole=parallel.size == 1)
    if config.quantization != "none":
        raise ValueError(f"quantization {config.quantization}: the native CPU decoder cannot be used: {reason}")
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    kept = kept_formats(capability, dtype, batch_invariant=config.batch_invariant)
    ops = _operators(config, device)
    return LlamaModel(model_config, weights, dtype, device, ops, max_model_len, parallel, kept)


def _kept(config: EngineConfig, files: ModelFiles) -> KeptWeights | None:
    """Return the memory for weights that outlive this process; None: they are only here."""
    if files.remote is not None and any(file.etag is None for file in files.remote.files):
        return None  # another version could not be told from this one
    wanted = has_huge_pages() if config.keep_weights == "auto" else config.keep_weights == "on"
    return inherited() if wanted else None


def _identity(config: EngineConfig, files: ModelFiles, model_config: DecoderConfig, dtype: torch.dtype) -> bytes:
    """Return what differs where packed weights do."""
    facts = (digest_of(files), model_config, dtype, config.quantization, variant(), version("inflight"))
    return hashlib.sha256(repr(facts).encode()).digest()


def kept_formats(capability: tuple[int, int] | None, dtype: torch.dtype, *, batch_invariant: bool) -> KeptFormats:
    """Return which quantized weights of a checkpoint stay as they are.

    Args:
        capability: the GPU's compute capability, major and minor; None: the device is a CPU.
    """
    if capability is None:
        return NONE_KEPT
    if dtype == torch.float32:
        return KeptFormats(*["their products give bfloat16 or float16, and dtype is float32"] * 2)
    why_not_fp8 = why_not_int4 = None
    this = f"this GPU has {capability[0]}.{capability[1]}"
    if capability < (8, 9):
        why_not_fp8 = f"float8 products need compute capability 8.9 ({this})"
    elif dtype == torch.float16:
        why_not_fp8 = "float8 products give bfloat16, and dtype is float16"
    elif batch_invariant:
        why_not_fp8 = "batch_invariant: float8 products add in an order that depends on the number of tokens"
    if capability < (8, 0):
        why_not_int4 = f"4-bit matrix products need compute capability 8.0 ({this})"
    return KeptFormats(why_not_fp8, why_not_int4)


def _operators(config: EngineConfig, device: torch.device) -> Ops:
    if device.type != "cuda":
        return TorchOps()
    from inflight_engine.execution.triton_ops import TritonOps  # not before it is needed: Triton takes a second

    return TritonOps(batch_invariant=config.batch_invariant)


def refuse_options(config: EngineConfig, model_config: ModelConfig) -> None:
    """Refuse options that no forward pass of a model has.

    Raises:
        ValueError: it names the option and what to set.
    """
    quantization, size = config.quantization, config.tensor_parallel_size
    if isinstance(model_config, TransformersConfig):
        for option, value, only in (("quantization", quantization, "none"), ("tensor_parallel_size", size, 1)):
            if value != only:
                raise ValueError(
                    f"{option} {value} is not supported with {model_config.shape.architecture}, which runs through "
                    f"transformers' modules; set it to {only}"
                )
    if quantization != "none" and size != 1:
        raise ValueError(
            f"quantization {quantization} is not supported with tensor_parallel_size {size}; set quantization none or"
            " tensor_parallel_size 1"
        )
