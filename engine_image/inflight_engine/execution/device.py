"""The choice of device and number type."""

from __future__ import annotations

import importlib.util

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_CUDA_FAULTS = ("CUDA error", "CUDA driver error", "Triton Error [CUDA]")
"""Texts that mark a fault of the GPU in messages of libraries that raise a plain RuntimeError."""


def choose_device(name: str) -> torch.device:
    """Return the device of a name: `auto` is a GPU when there is one.

    Raises:
        ValueError: `cuda` where torch finds no GPU, or a GPU without the package triton.
    """
    if name == "cpu":
        return torch.device("cpu")
    if torch.cuda.is_available():
        if importlib.util.find_spec("triton") is None:
            raise ValueError(
                "a GPU needs the package triton, which torch's builds for GPUs require; install it, or set device cpu"
            )
        return torch.device("cuda", torch.cuda.current_device())
    if name == "cuda":
        raise ValueError("device is cuda, but torch finds no GPU here; use device auto or cpu, or check the driver")
    return torch.device("cpu")


def choose_dtype(name: str, device: torch.device, *, in_kernels: bool) -> torch.dtype:
    """Return the number type of a name: `auto` is bfloat16 where it is faster: on GPUs that have it, and on CPUs in the
    native decoder (weights of half the size; it still computes in float32) or with AMX. Else it is float32, which is
    exact: torch alone was measured to be slower in bfloat16 on a CPU with AVX512-BF16.

    Args:
        in_kernels: the CPU kernels compute the whole model.
    """
    if name == "auto":
        return torch.bfloat16 if _is_faster_in_bfloat16(device, in_kernels) else torch.float32
    return DTYPES[name]


def device_failed(error: Exception) -> bool:
    """Return whether a step raised because of a fault of the GPU or of a kernel, after which no step of this process
    succeeds: CUDA reports such a fault again at every call. Exhausted memory is no such fault."""
    text = str(error)
    if "out of memory" in text or "ALLOC_FAILED" in text:
        return False
    return isinstance(error, torch.AcceleratorError) or any(each in text for each in _CUDA_FAULTS)


def _is_faster_in_bfloat16(device: torch.device, in_kernels: bool) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return in_kernels or bool(torch.cpu.get_capabilities().get("amx_bf16"))
