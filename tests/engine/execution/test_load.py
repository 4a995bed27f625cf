"""Which quantized weights stay quantized, by device and options."""

import pytest
import torch

from inflight_engine.execution.load import kept_formats
from inflight_engine.models.linear import NONE_KEPT

BF16 = torch.bfloat16


def kept(capability, dtype=BF16, *, has_triton=True, batch_invariant=False):
    return kept_formats(capability, dtype, has_triton=has_triton, batch_invariant=batch_invariant)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gpus_since_ada_keep_float8_and_4_bits(dtype):
    for capability in ((8, 9), (9, 0), (10, 0), (12, 0)):
        assert (kept(capability, dtype).why_not_fp8, kept(capability, dtype).why_not_int4) == (None, None)


def test_a_cpu_keeps_neither():
    assert kept(None) is NONE_KEPT


@pytest.mark.parametrize(
    ("found", "why_not_fp8", "why_not_int4"),
    [
        (kept((8, 0)), "this GPU has 8.0", None),
        (kept((7, 5)), "this GPU has 7.5", "this GPU has 7.5"),
        (kept((9, 0), torch.float32), "dtype is float32", "dtype is float32"),
        (kept((9, 0), has_triton=False), None, "need the package triton"),
        (kept((9, 0), batch_invariant=True), "batch_invariant", None),
    ],
)
def test_what_a_device_or_an_option_rules_out_is_said(found, why_not_fp8, why_not_int4):
    for reason, expected in ((found.why_not_fp8, why_not_fp8), (found.why_not_int4, why_not_int4)):
        assert (reason is None) == (expected is None)
        assert expected is None or expected in reason
