"""Triton kernels beside attention: right in the interpreter, and they compile for the GPUs they are for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from inflight_engine.execution import few_rows, int4_matmul, invariant_matmul, triton_ops
from inflight_engine.execution.sampling import gumbel_triton, triton_filters, triton_logits, triton_mask
from inflight_engine.models.ops import FP8_LEAST_SCALE, FP8_MAX
from tests.engine.execution.tiny_model import make_model
from tests.engine.execution.triton_compile import ARCHITECTURES, compile_kernel


def test_in_the_interpreter_they_equal_plain_torch(tmp_path):
    make_model(tmp_path, "llama-wide-heads")
    names = ("interpreted_ops.py", "sampling/interpreted_gumbel.py", "interpreted_runner.py")
    files = [Path(__file__).parent / name for name in names]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.engine.execution.quick_interpreter", *map(str, files)],
        env=os.environ | {"TRITON_INTERPRET": "1", "INFLIGHT_CPU_KERNELS": "off", "TINY_MODEL": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        timeout=800,
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


@pytest.mark.parametrize(("architecture", "dtype"), [(89, "fp16"), (90, "bf16")])
def test_rounding_rows_to_float8_compiles(architecture, dtype):
    compiled = compile_kernel(
        triton_ops.quantize_rows_kernel,
        architecture,
        {"x": f"*{dtype}", "rows": "*fp8e4nv", "scales": "*fp32", "x_stride": "i32"},
        {"WIDTH": 14336, "COLUMNS": 4096, "LARGEST": FP8_MAX, "LEAST_SCALE": FP8_LEAST_SCALE},
        num_warps=8,
    )
    assert "cvt.rn.satfinite.e4m3x2" in compiled.asm["ptx"]


INT4 = {"packed": "*u8", "scales": "*fp16", "zeros": "*u8", "N": "i32"}


@pytest.mark.parametrize(
    ("architecture", "tile", "half", "shared_memory"),
    [
        (80, (64, 64), 32, 163 << 10),
        (86, (64, 64), 128, 99 << 10),
        (90, (16, 64), 128, 227 << 10),
        (90, (64, 64), 128, 227 << 10),
    ],
)
def test_products_with_weights_of_4_bits_compile_to_tensor_cores(architecture, tile, half, shared_memory):
    compiled = compile_kernel(
        int4_matmul.int4_matmul_kernel,
        architecture,
        INT4 | dict.fromkeys(("a", "bias", "c"), "*bf16") | dict.fromkeys(("M", "width", "a_stride", "span"), "i32"),
        {"HALF": half, "GROUP_SIZE": 2 * half, "TILE_M": tile[0], "TILE_N": tile[1], "HAS_BIAS": True},
        num_warps=4,
        num_stages=3,
    )
    assert compiled.metadata.shared <= shared_memory
    assert ("wgmma" if architecture == 90 else "mma.sync") in compiled.asm["ptx"]
    assert "cvt.rn.f32" not in compiled.asm["ptx"], "integers become numbers by their bits"
    compile_kernel(
        int4_matmul.int4_dequantize_kernel,
        architecture,
        INT4 | {"weights": "*fp16", "K": "i32"},
        {"HALF": 128, "GROUP_SIZE": 128, "TILE_N": 32},
        num_warps=4,
    )
    compile_kernel(
        int4_matmul.add_splits_kernel,
        architecture,
        {"partials": "*fp32", "bias": "*bf16", "c": "*bf16"} | dict.fromkeys(("M", "N", "splits"), "i32"),
        {"MOST_SPLITS": 8, "COLUMNS": 256, "HAS_BIAS": True},
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("inputs", "padded"), [(1024, 1024), (14336, 16384)])
def test_products_of_few_rows_compile_and_spill_nothing(architecture, inputs, padded):
    num_warps, elements = few_rows.THREADS
    tile = max(1, 32 * num_warps * elements // padded)
    compiled = compile_kernel(
        few_rows.few_rows_kernel,
        architecture,
        dict.fromkeys(("a", "weights", "bias", "c"), "*bf16") | dict.fromkeys(("M", "N", "a_stride"), "i32"),
        {"K": inputs, "PADDED_K": padded, "ROWS": 4, "TILE_N": tile, "HAS_BIAS": True},
        num_warps=num_warps,
    )
    assert ".local" not in compiled.asm["ptx"]


BIASES = {"integers": "*i64", "bias_tokens": "*i32", "bias_values": "*fp32", "unbiased": "*fp32"}
BIASED = {"logits": "*fp32", "slots": "*i64", "stride": "i32"}
PEAKS = BIASED | {"peaks": "*fp32", "vocab_size": "i32", "numbers": "*fp64", "met": "*i16"}
ROWS = PEAKS | {"integers": "*i64"}
FILTERED = ROWS | {"histograms": "*i64"}
PICKED = {"scores": "*fp32", "tokens": "*i32", "vocab_size": "i32"}
SPLIT = {"SPLITS": 19, "SPAN": gumbel_triton._SPAN, "BLOCK": gumbel_triton._BLOCK}
PADDED = SPLIT | {"PADDED_SPLITS": 32}
BINNED = PADDED | {"BINS": gumbel_triton._BINS}
LISTED = BINNED | {"LISTED": gumbel_triton._LISTED}
SEARCHED = LISTED | {"BLOCK": gumbel_triton._SEARCH_BLOCK, "WAYS": gumbel_triton._WAYS}


@pytest.mark.parametrize(
    ("kernel", "signature", "constants"),
    [
        (triton_logits.bias_kernel, BIASED | BIASES, {"RESTORE": False, "BLOCK": gumbel_triton._BIASES}),
        (triton_logits.bias_kernel, BIASED | BIASES, {"RESTORE": True, "BLOCK": gumbel_triton._BIASES}),
        (triton_logits.peak_kernel, PEAKS, SPLIT),
        (triton_filters.weigh_kernel, FILTERED, BINNED),
        (
            triton_filters.bound_kernel,
            {"slots": "*i64", "numbers": "*fp64", "integers": "*i64", "vocab_size": "i32"}
            | dict.fromkeys(("histograms", "bounds"), "*i64"),
            {"BINS": gumbel_triton._BINS},
        ),
        (triton_filters.list_kernel, ROWS | {"bounds": "*i64", "lists": "*i32"}, LISTED),
        (
            triton_filters.cut_kernel,
            ROWS | {"bounds": "*i64", "lists": "*i32", "cuts": "*i64"},
            {name: size for name, size in SEARCHED.items() if name != "SPAN"},
        ),
        (gumbel_triton.pick_kernel, ROWS | PICKED | {"positions": "*i64", "cuts": "*i64"}, PADDED),
        (gumbel_triton.combine_kernel, PICKED | {"chosen": "*i64"}, {"SPLITS": 19, "PADDED_SPLITS": 32}),
        (
            gumbel_triton.count_kernel,
            {"slots": "*i64", "token_ids": "*i64", "met": "*i16", "vocab_size": "i32", "num_rows": "i32"},
            {"BLOCK": 128},
        ),
        (
            triton_mask.mask_kernel,
            {
                "logits": "*fp32",
                "rows": "*i64",
                "bits": "*i32",
                "stride": "i32",
                "vocab_size": "i32",
                "num_words": "i32",
            },
            {"BLOCK": triton_mask._BLOCK},
        ),
    ],
    ids=["bias", "restore", "peak", "weigh", "bound", "list", "cut", "pick", "combine", "count", "mask"],
)
def test_sampling_compiles(kernel, signature, constants):
    warps = gumbel_triton._SEARCH_WARPS if "WAYS" in constants else gumbel_triton._WARPS
    compile_kernel(kernel, 90, signature, constants, num_warps=warps, enable_fp_fusion=False)


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
