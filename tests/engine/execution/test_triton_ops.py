"""Triton kernels beside attention: right in the interpreter, and they compile for the GPUs they are for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from inflight_engine.execution import invariant_matmul, triton_ops
from inflight_engine.execution.sampling import draws_triton
from tests.engine.execution.tiny_model import make_model
from tests.engine.execution.triton_compile import ARCHITECTURES, compile_kernel


def test_in_the_interpreter_they_equal_plain_torch(tmp_path):
    make_model(tmp_path, "llama-wide-heads")
    files = [Path(__file__).with_name(f"interpreted_{name}.py") for name in ("ops", "draw", "runner")]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *map(str, files)],
        env=os.environ | {"TRITON_INTERPRET": "1", "INFLIGHT_CPU_KERNELS": "off", "TINY_MODEL": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=200,
        check=False,
    )
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_the_small_operators_compile(architecture, dtype):
    kind = f"*{dtype}"
    for adds in (False, True):
        compile_kernel(
            triton_ops.rms_norm_kernel,
            architecture,
            dict.fromkeys(("x", "residual", "weight", "normed"), kind) | {"x_stride": "i32", "eps": "fp32"},
            {"WIDTH": 4096, "PADDED": 4096, "ADDS": adds},
            num_warps=8,
        )
        compile_kernel(
            triton_ops.rotary_kernel,
            architecture,
            {"qkv": kind, "positions": "*i64", "table": "*fp32", "qkv_stride": "i32", "eps": "fp32"}
            | dict.fromkeys(("query_norm", "key_norm"), kind if adds else "*fp32"),
            {
                "NUM_HEADS": 32,
                "NUM_KV_HEADS": 8,
                "HALF": 64,
                "PADDED_HALF": 64,
                "HEADS_PER_PROGRAM": 16,
                "NORMS": adds,
            },
        )
    compile_kernel(
        triton_ops.silu_mul_kernel,
        architecture,
        {"gate_up": kind, "mixed": kind, "gate_up_stride": "i32"},
        {"WIDTH": 14336, "COLUMNS": 1024},
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_the_invariant_product_compiles_to_tensor_cores(architecture, dtype):
    kind = f"*{dtype}"
    compiled = compile_kernel(
        invariant_matmul.matmul_kernel,
        architecture,
        dict.fromkeys(("a", "b", "bias", "c"), kind)
        | dict.fromkeys(("M", "N", "K", "a_stride_m", "a_stride_k", "b_stride_k", "b_stride_n"), "i32"),
        {"TILE_M": 64, "TILE_N": 64, "TILE_K": 64, "GROUP_M": 8, "HAS_BIAS": True},
        num_warps=4,
        num_stages=3,
    )
    if dtype == "bf16":
        assert ("wgmma" if architecture == 90 else "mma.sync") in compiled.asm["ptx"]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_draw_compiles(architecture):
    compile_kernel(
        draws_triton.draw_kernel,
        architecture,
        {"logits": "*fp32", "rows": "*i64", "how": "*fp64", "drawn": "*i64"}
        | dict.fromkeys(("stride", "num_rows", "vocab_size"), "i32"),
        {"BLOCK": draws_triton._BLOCK},
        num_warps=8,
    )


def test_linear_layers_come_to_the_two_operators_that_are_overridden():
    """Registered on CPU here, where the same operators are behind a linear layer; the real override is for GPUs only,
    and is registered once."""
    program = """
import torch
from inflight_engine.execution import invariant_matmul
invariant_matmul.use_for_all_products()
invariant_matmul.use_for_all_products()
assert len(invariant_matmul._overrides) == 1
x, weight, bias, reached = torch.ones(2, 3), torch.ones(4, 3), torch.ones(4), []
assert float((x @ weight.T).sum()) == 24.0
library = torch.library.Library("aten", "IMPL")
library.impl("mm", lambda a, b: reached.append("mm") or a.new_zeros(a.shape[0], b.shape[1]), "CPU")
library.impl("addmm", lambda c, a, b: reached.append("addmm") or a.new_zeros(a.shape[0], b.shape[1]), "CPU")
with torch.inference_mode():
    torch.nn.functional.linear(x, weight)
    torch.nn.functional.linear(x, weight, bias)
    torch.nn.functional.linear(x[None], weight)
    torch.nn.functional.linear(x[None], weight, bias)
print(*reached)
"""
    result = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=100, check=True)
    assert result.stdout.split() == ["mm", "addmm", "mm", "addmm"]
