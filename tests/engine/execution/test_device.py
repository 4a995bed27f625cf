"""Which number type `auto` is."""

import pytest
import torch

from inflight_engine.execution import device
from inflight_engine.execution.device import choose_device, choose_dtype

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("kernels", "amx", "dtype"),
    [(True, False, torch.bfloat16), (False, True, torch.bfloat16), (False, False, torch.float32)],
)
def test_on_a_cpu_auto_is_bfloat16_with_the_kernels_or_with_amx(kernels, amx, dtype, monkeypatch):
    monkeypatch.setattr(device, "library", lambda: object() if kernels else None)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": amx})
    assert choose_dtype("auto", CPU) == dtype


def test_a_named_type_is_taken_and_an_unknown_one_refused():
    assert choose_dtype("float16", CPU) == torch.float16
    with pytest.raises(ValueError, match="dtype must be auto, float32, bfloat16, float16, not int8"):
        choose_dtype("int8", CPU)


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == choose_device("cpu") == CPU
    with pytest.raises(ValueError, match="device is cuda, but torch finds no GPU here"):
        choose_device("cuda")
    with pytest.raises(ValueError, match="device must be auto, cpu or cuda, not tpu"):
        choose_device("tpu")
