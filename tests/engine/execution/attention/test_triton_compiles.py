"""The Triton kernels of attention compile for A100, for smaller chips of its kind, and for Hopper, and fit their shared
memory. No GPU is needed."""

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from inflight_engine.execution.attention import triton_cache, triton_decode, triton_prefill
from inflight_engine.execution.attention.triton_tiles import decode_tiles, prefill_tiles

SHARED_MEMORY = {80: 163 << 10, 86: 99 << 10, 90: 227 << 10}
POINTERS = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32", torch.float8_e4m3fn: "*fp8e4nv"}
BF16, FP16, FP32, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn


def compile_kernel(kernel, arch, pointers, scalars, constants, **options):
    """Compiles as a launch does: pointers and strides are multiples of 16, all but the scales', which are a layer's."""
    signature = {}
    for name in kernel.arg_names:
        if name in constants:
            signature[name] = "constexpr"
        else:
            signature[name] = pointers[name] if name in pointers else scalars[name]
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(kernel.arg_names)
        if (name in pointers and name != "kv_scales") or name.endswith("stride")
    }
    source = ASTSource(kernel, signature, constants, aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options | {"enable_fp_fusion": True})
    assert compiled.metadata.shared <= SHARED_MEMORY[arch]
    assert compiled.asm["cubin"]
    return compiled.asm["ptx"]


def attention_constants(tiles, head_dim, group, window, softcap):
    return {
        "WINDOW": window,
        "SOFTCAP": softcap,
        "KV_HEADS": 8,
        "GROUP": group,
        "BLOCK_SIZE": 16,
        "HEAD_DIM": head_dim,
        "PADDED_DIM": triton.next_power_of_2(head_dim),
        "ROWS": tiles.rows,
        "TILE": tiles.keys,
    }


CASES = [
    (80, 256, 2, BF16, BF16, 1024, 30.0),
    (86, 128, 4, BF16, BF16, 0, 0.0),
    (90, 80, 1, BF16, BF16, 512, 0.0),
    (90, 128, 4, BF16, FP8, 0, 0.0),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in [
            (80, 64, 3, BF16, BF16, 0, 0.0),
            (80, 128, 4, BF16, BF16, 0, 0.0),
            (86, 64, 1, BF16, BF16, 0, 0.0),
            (86, 256, 1, BF16, BF16, 0, 0.0),
            (90, 64, 7, FP16, FP16, 0, 0.0),
            (90, 96, 1, BF16, BF16, 0, 0.0),
            (90, 128, 4, BF16, BF16, 0, 0.0),
            (90, 128, 71, BF16, BF16, 0, 0.0),
            (90, 256, 2, BF16, FP8, 1024, 30.0),
            (90, 128, 2, FP32, FP32, 0, 0.0),
            (80, 256, 2, FP32, FP32, 0, 0.0),
        ]
    ),
]
"""Compute capability, head_dim, group, dtype, the cache's, window, softcap."""


@pytest.mark.parametrize(("arch", "head_dim", "group", "dtype", "cache_dtype", "window", "softcap"), CASES, ids=str)
def test_decode_compiles(arch, head_dim, group, dtype, cache_dtype, window, softcap):
    tiles = decode_tiles(head_dim, group, dtype.itemsize, SHARED_MEMORY[arch])
    pointers = dict.fromkeys(("queries", "out"), POINTERS[dtype])
    pointers |= dict.fromkeys(("block_table", "slots", "context_lens"), "*i32")
    pointers |= {"cache": POINTERS[cache_dtype]}
    pointers |= dict.fromkeys(("kv_scales", "partials", "partial_stats"), "*fp32")
    scalars = dict.fromkeys(("query_stride", "query_head_stride", "table_stride", "min_tiles"), "i32") | {
        "scale": "fp32"
    }
    options = {"num_warps": tiles.num_warps, "num_stages": tiles.num_stages}
    constants = attention_constants(tiles, head_dim, group, window, softcap)
    ptx = compile_kernel(triton_decode.decode_kernel, arch, pointers, scalars, constants, **options)
    assert ("mma" in ptx) == (dtype != FP32), "tensor cores where there are any"


@pytest.mark.parametrize(("arch", "head_dim", "group", "dtype", "cache_dtype", "window", "softcap"), CASES, ids=str)
def test_prefill_compiles(arch, head_dim, group, dtype, cache_dtype, window, softcap):
    tiles = prefill_tiles(head_dim, group, dtype.itemsize, SHARED_MEMORY[arch])
    pointers = dict.fromkeys(("queries", "out"), POINTERS[dtype])
    pointers |= dict.fromkeys(("block_table", "query_tiles"), "*i32")
    pointers |= {"cache": POINTERS[cache_dtype], "kv_scales": "*fp32"}
    scalars = dict.fromkeys(("query_stride", "query_head_stride", "table_stride"), "i32") | {"scale": "fp32"}
    # The loop of the invariant form is one of those of the other.
    constants = attention_constants(tiles, head_dim, group, window, softcap) | {"INVARIANT": False}
    options = {"num_warps": tiles.num_warps, "num_stages": tiles.num_stages}
    ptx = compile_kernel(triton_prefill.prefill_kernel, arch, pointers, scalars, constants, **options)
    product = "wgmma" if arch == 90 else "mma.sync"
    assert (product in ptx) == (dtype != FP32), "tensor cores where there are any"


@pytest.mark.parametrize(("arch", "dtype", "window"), [(80, BF16, 0), (90, FP32, 1024)], ids=str)
def test_combining_splits_compiles(arch, dtype, window):
    pointers = {"partials": "*fp32", "partial_stats": "*fp32", "context_lens": "*i32", "out": POINTERS[dtype]}
    constants = {"WINDOW": window, "HEAD_DIM": 80, "PADDED_DIM": 128, "TILE": 64, "LANES": 8}
    scalars = {"num_splits": "i32", "min_tiles": "i32"}
    compile_kernel(triton_decode.combine_kernel, arch, pointers, scalars, constants, num_warps=2)


@pytest.mark.parametrize(
    ("arch", "dtype", "cache_dtype"), [(80, BF16, BF16), (90, BF16, FP8), (90, FP32, FP8)], ids=str
)
def test_writing_the_cache_compiles(arch, dtype, cache_dtype):
    pointers = {
        "keys": POINTERS[dtype],
        "values": POINTERS[dtype],
        "cache": POINTERS[cache_dtype],
        "kv_scales": "*fp32",
        "slots": "*i32",
    }
    scalars = dict.fromkeys(("key_stride", "value_stride", "key_head_stride", "value_head_stride"), "i32")
    constants = {"KV_HEADS": 3, "BLOCK_SIZE": 16, "HEAD_DIM": 80, "PADDED_HEADS": 4, "PADDED_DIM": 128}
    compile_kernel(triton_cache.write_kernel, arch, pointers, scalars, constants)
