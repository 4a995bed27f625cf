"""Which code computes a model, and its weights in memory."""

from __future__ import annotations

import torch

from inflight_engine.config import EngineConfig
from inflight_engine.models.config import DecoderConfig
from inflight_engine.models.llama import LlamaModel
from inflight_engine.models.ops import TorchOps
from inflight_engine.models.protocol import Model
from inflight_engine.models.source import ModelFiles
from inflight_engine.models.weights import open_weights


def load_model(
    config: EngineConfig, files: ModelFiles, model_config: DecoderConfig, dtype: torch.dtype, device: torch.device
) -> Model:
    """Make the fastest forward pass that there is for a model on a device.

    Raises:
        ValueError: `quantization` where no forward pass has it, or weights that are not of this configuration.
    """
    if config.quantization != "none":
        raise ValueError(f"quantization {config.quantization} needs the native CPU kernels, which are not here")
    max_model_len = config.max_model_len or model_config.max_position_embeddings
    return LlamaModel(model_config, open_weights(files, model_config), dtype, device, TorchOps(), max_model_len)
