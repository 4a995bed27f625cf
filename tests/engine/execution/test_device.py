"""The number type of `auto`."""

import importlib.util

import pytest
import torch

from inflight_engine.execution.device import choose_device, choose_dtype, device_failed
from inflight_engine.execution.load import is_in_kernels
from inflight_engine.models.checkpoints.config import load_model_config
from inflight_engine.models.checkpoints.source import resolve
from inflight_engine.native.library import library
from inflight_settings.engine import EngineConfig

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("kernels", "amx", "dtype"),
    [(True, False, torch.bfloat16), (False, True, torch.bfloat16), (False, False, torch.float32)],
)
def test_on_a_cpu_auto_is_bfloat16_in_the_kernels_or_with_amx(kernels, amx, dtype, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": amx})
    assert choose_dtype("auto", CPU, in_kernels=kernels) == dtype


@pytest.mark.parametrize(
    ("options", "possible"),
    [
        ({}, True),
        ({"quantization": "int8"}, True),
        ({"tensor_parallel_size": 3}, False),
        ({"attention_backend": "torch-sdpa"}, False),
        ({"block_size": 4}, False),
    ],
)
def test_the_kernels_compute_a_native_model_unless_an_option_is_against_it(options, possible):
    config = EngineConfig("builtin://smollm2", **options)
    model_config = load_model_config(resolve(config.model))
    assert is_in_kernels(config, model_config, CPU) == (possible and library() is not None)


def test_a_named_type_is_taken_and_an_unknown_one_refused():
    assert choose_dtype("float16", CPU, in_kernels=False) == torch.float16
    with pytest.raises(ValueError, match="dtype must be one of auto, float32, bfloat16, float16, not 'int8'"):
        EngineConfig("m", dtype="int8")


def test_a_gpu_without_triton_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name in ("auto", "cuda"):
        with pytest.raises(ValueError, match="a GPU needs the package triton"):
            choose_device(name)
    assert choose_device("cpu") == CPU


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == choose_device("cpu") == CPU
    with pytest.raises(ValueError, match="device is cuda, but torch finds no GPU here"):
        choose_device("cuda")
    with pytest.raises(ValueError, match="device must be one of auto, cpu, cuda, not 'tpu'"):
        EngineConfig("m", device="tpu")


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasGemmEx"),
        RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
    ],
)
def test_fault_of_the_device_is_told_from_others(error):
    assert device_failed(error)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB"),
        torch.AcceleratorError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
        ValueError("slot 3 has no blocks"),
    ],
)
def test_what_one_step_has_too_much_of_is_no_fault_of_the_device(error):
    assert not device_failed(error)
