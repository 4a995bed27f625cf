"""Which device and number type to compute in."""

from __future__ import annotations

import torch

from inflight_engine.execution.native.library import library

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(name: str) -> torch.device:
    """The device of a name: `auto` is a GPU when there is one.

    Raises:
        ValueError: `cuda` where torch finds no GPU, or an unknown name.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device must be auto, cpu or cuda, not {name}")
    if name == "cpu":
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if name == "cuda":
        raise ValueError("device is cuda, but torch finds no GPU here; use device auto or cpu, or check the driver")
    return torch.device("cpu")


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """The number type of a name: `auto` is bfloat16 where it is faster: on GPUs that have it, and on CPUs with the
    kernels (weights of half the size; they still compute in float32) or with AMX. Else it is float32: torch alone was
    measured to be slower in bfloat16 on a CPU with AVX512-BF16.

    Raises:
        ValueError: an unknown name.
    """
    if name == "auto":
        return torch.bfloat16 if _is_faster_in_bfloat16(device) else torch.float32
    if name not in DTYPES:
        raise ValueError(f"dtype must be auto, {', '.join(DTYPES)}, not {name}")
    return DTYPES[name]


def _is_faster_in_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return library() is not None or bool(torch.cpu.get_capabilities().get("amx_bf16"))
