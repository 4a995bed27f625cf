"""An attention backend for the CPU that rounds keys and values as a cache in fp8 does."""

from dataclasses import replace

import torch

from inflight_engine.execution import build
from inflight_engine.execution.attention.torch_sdpa import TorchSdpaBackend

FP8 = torch.float8_e4m3fn


class EmulatedFp8(TorchSdpaBackend):
    """Keeps what the cache's numbers stand for in the model's own dtype."""

    def __init__(self, spec):
        assert spec.cache_dtype == FP8
        super().__init__(replace(spec, cache_dtype=spec.dtype))
        self.scales = spec.kv_scales

    def forward(self, layer, queries, keys, values):
        rounded = []
        for x, scale in zip((keys, values), self.scales[layer][:, None, :, None], strict=True):
            kept = (x.float() / scale).clamp(-448, 448).to(FP8)
            rounded.append((kept.float() * scale).to(x.dtype))
        return super().forward(layer, queries, *rounded)


def emulate_fp8(monkeypatch):
    """Let `kv_cache_dtype` fp8 be served on a CPU, where `attention_backend` is torch-sdpa."""
    cache_dtype = build._cache_dtype

    def fp8_or(name, dtype, device):
        return FP8 if name == "fp8" else cache_dtype(name, dtype, device)

    choose = build.choose_backend
    monkeypatch.setattr(build, "_cache_dtype", fp8_or)
    monkeypatch.setattr(
        build, "choose_backend", lambda name, spec: EmulatedFp8 if spec.cache_dtype == FP8 else choose(name, spec)
    )
