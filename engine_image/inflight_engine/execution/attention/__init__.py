"""Attention backends, best first. The runner takes the first one that runs on its device and reports its name."""

from __future__ import annotations

import torch

from inflight_engine.execution.attention.base import AttentionBackend
from inflight_engine.execution.attention.torch_sdpa import TorchSdpaBackend

BACKENDS: tuple[type[AttentionBackend], ...] = (TorchSdpaBackend,)


def choose_backend(device: torch.device) -> type[AttentionBackend]:
    """The first backend that runs on a device. The last one of the list runs on any."""
    return next(backend for backend in BACKENDS if backend.runs_on(device))
