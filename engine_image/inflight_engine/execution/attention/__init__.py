"""Attention backends, fastest first. The runner uses the first one that can serve its model and reports its name."""

from __future__ import annotations

import logging

from inflight_engine.execution.attention.base import AttentionBackend, AttentionSpec
from inflight_engine.execution.attention.cpu_native import CpuNativeBackend
from inflight_engine.execution.attention.flash_attn_3 import FlashAttn3Backend
from inflight_engine.execution.attention.torch_sdpa import TorchSdpaBackend
from inflight_engine.execution.attention.triton_paged import TritonBackend

log = logging.getLogger(__name__)

BACKENDS: tuple[type[AttentionBackend], ...] = (
    FlashAttn3Backend,
    TritonBackend,
    CpuNativeBackend,
    TorchSdpaBackend,
)


def choose_backend(name: str, spec: AttentionSpec) -> type[AttentionBackend]:
    """Return the backend of a name; `auto`: the first that can serve the spec. The log gives the choice and, on a GPU,
    the reasons against faster backends.

    Raises:
        ValueError: the named backend cannot be used, or no backend can; the message gives the reasons.
    """
    reasons: list[str] = []
    for backend in BACKENDS:
        if name not in ("auto", backend.name):
            continue
        reason = backend.why_not(spec)
        if reason is None:
            passed_over = f" ({'; '.join(reasons)})" if reasons and spec.device.type == "cuda" else ""
            log.info("attention: %s%s", backend.name, passed_over)
            return backend
        reasons.append(f"{backend.name} cannot be used: {reason}")
    raise ValueError(f"attention_backend {name}: {'; '.join(reasons) or 'there is no such backend'}")
