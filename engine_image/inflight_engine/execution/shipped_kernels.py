"""Triton kernels that are compiled while the image is built, for models and GPUs that are often used:

    python -m inflight_engine.execution.shipped_kernels FOLDER

compiles them into a folder without a GPU. With the environment's

    TRITON_CACHE_MANAGER=inflight_engine.execution.shipped_kernels:ShippedKernels

Triton finds them in `FOLDER`; it compiles all others at first use, and keeps them in TRITON_CACHE_DIR.

A kernel's key is a hash of Triton, its sources, the compute capability, the compiler's options, the constants and the
types and alignments of its arguments. So the launches here are those of the engine, with tensors that have no memory.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.cache import FileCacheManager
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from inflight_engine.execution import few_rows, int4_matmul
from inflight_engine.execution.attention import triton_paged
from inflight_engine.execution.attention.base import AttentionBatch, AttentionSpec, ChunkSpan
from inflight_engine.execution.sampling.device_sampler import DeviceSampler
from inflight_engine.execution.triton_ops import TritonOps
from inflight_engine.models.checkpoints.shape import ModelShape
from inflight_engine.models.matrices import Int4Matrix

FOLDER = Path(sys.prefix) / "kernels"
SHARED_MEMORY = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}
"""Bytes of shared memory that a program can have, by compute capability: A100, H100 and H200, B200."""
_FP8_SINCE = 89
_MULTIPROCESSORS = 132
"""Only launch grids depend on it."""
_META = torch.device("meta")
_INT4_GROUP = 128


class Sizes(NamedTuple):
    """The sizes of a model; `tensor_parallel`: sizes of tensor parallelism."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    has_head_norms: bool = False
    tensor_parallel: tuple[int, ...] = (1,)


MODELS = {
    "Qwen3-0.6B": Sizes(1024, 3072, 16, 8, 128, 151936, True),
    "Qwen3-1.7B": Sizes(2048, 6144, 16, 8, 128, 151936, True),
    "Qwen3-4B": Sizes(2560, 9728, 32, 8, 128, 151936, True),
    "Qwen3-8B": Sizes(4096, 12288, 32, 8, 128, 151936, True),
    "Qwen3-14B": Sizes(5120, 17408, 40, 8, 128, 151936, True),
    "Qwen3-32B": Sizes(5120, 25600, 64, 8, 128, 151936, True, (1, 2, 4)),
    "Qwen2.5-7B": Sizes(3584, 18944, 28, 4, 128, 152064),
    "Llama-3.2-1B": Sizes(2048, 8192, 32, 8, 64, 128256),
    "Llama-3.2-3B": Sizes(3072, 8192, 24, 8, 128, 128256),
    "Llama-3.1-8B": Sizes(4096, 14336, 32, 8, 128, 128256, tensor_parallel=(1, 2)),
    "Llama-3.3-70B": Sizes(8192, 28672, 64, 8, 128, 128256, tensor_parallel=(2, 4, 8)),
    "Mistral-7B-v0.3": Sizes(4096, 14336, 32, 8, 128, 32768),
}


class ShippedKernels(FileCacheManager):  # type: ignore[misc]
    """Looks a kernel up in `FOLDER` before TRITON_CACHE_DIR."""

    def get_group(self, filename: str) -> dict[str, str] | None:
        shipped = FOLDER / self.key
        if (shipped / f"__grp__{filename}").exists():
            return {file.name: str(file) for file in shipped.iterdir() if not file.name.startswith("__grp__")}
        group: dict[str, str] | None = super().get_group(filename)
        return group


class CompilingDriver:
    """Stands in for Triton's driver: a launch compiles the kernel for a compute capability, and runs nothing."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def only_compile(capability: int) -> None:
    """From now on, kernels launched by this process are compiled for a compute capability, and do not run."""
    driver.set_active(CompilingDriver(capability))
    launch = JITFunction.run
    JITFunction.run = lambda self, *arguments, warmup, **options: launch(self, *arguments, warmup=True, **options)
    triton_paged._chip = lambda device: (_MULTIPROCESSORS, SHARED_MEMORY[capability])


def launch_all(sizes: Sizes, tensor_parallel: int, *, has_fp8: bool) -> None:
    """Launch each kernel that steps of a model in bfloat16 launch, with all of its caches and weights."""
    shape = ModelShape("", sizes.vocab, 4096, 1, sizes.heads, sizes.kv_heads, sizes.head_dim, (None,))
    shape = shape.for_rank(tensor_parallel)
    for cache_dtype in (torch.bfloat16, torch.float8_e4m3fn) if has_fp8 else (torch.bfloat16,):
        _launch_attention(shape, cache_dtype)
    ops, tokens = TritonOps(), 4
    x, weight, positions = _tensor(tokens, sizes.hidden), _tensor(sizes.hidden), _tensor(tokens, dtype=torch.int64)
    ops.rms_norm(x, weight, 1e-6)
    ops.add_rms_norm(x, _tensor(tokens, sizes.hidden), weight, 1e-6)
    norms = (_tensor(sizes.head_dim), _tensor(sizes.head_dim)) if sizes.has_head_norms else None
    qkv = _tensor(tokens, (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim)
    table = _tensor(4096, shape.head_dim, dtype=torch.float32)
    ops.rotary(qkv, positions, table, shape.num_heads, shape.num_kv_heads, norms, 1e-6)
    inner = sizes.intermediate // tensor_parallel
    ops.silu_mul(_tensor(tokens, 2 * inner))
    for inputs in (sizes.hidden, shape.num_heads * shape.head_dim, inner):
        if has_fp8:
            ops.quantize_rows(_tensor(tokens, inputs))
        matrix = Int4Matrix(
            _tensor(sizes.hidden, inputs // 2, dtype=torch.uint8),
            _tensor(inputs // _INT4_GROUP, sizes.hidden),
            _tensor(inputs // _INT4_GROUP, sizes.hidden, dtype=torch.uint8),
            _INT4_GROUP,
        )
        for rows in (16, 32, 64, int4_matmul.MOST_ROWS + 1):
            ops.int4_linear(_tensor(rows, inputs), matrix, None)
    for outputs, inputs, has_bias in (
        (qkv.shape[1], sizes.hidden, False),
        (qkv.shape[1], sizes.hidden, True),
        (sizes.hidden, shape.num_heads * shape.head_dim, False),
        (2 * inner, sizes.hidden, False),
        (sizes.hidden, inner, False),
    ):
        for rows in range(1, few_rows.MOST_ROWS + 1):
            weight, bias = _tensor(outputs, inputs), _tensor(outputs) if has_bias else None
            ops.linear(_tensor(rows, inputs), weight, bias)
    sampler = DeviceSampler(1, sizes.vocab, _META)
    slots = _tensor(2, dtype=torch.int64)
    token_ids = sampler.choose(_tensor(2, sizes.vocab, dtype=torch.float32), slots, slots)
    sampler.count(slots, token_ids)


def _launch_attention(shape: ModelShape, cache_dtype: torch.dtype) -> None:
    """Launch a step of a decode and a chunk."""
    spec = AttentionSpec(shape, 1, 16, torch.bfloat16, cache_dtype, _META, 2, 16, shape.max_position_embeddings)
    attention = triton_paged.TritonBackend(spec)
    none, table = np.zeros(0, np.int64), np.zeros((2, 1), np.int64)
    chunks = (ChunkSpan(slot=1, first=1, length=2, start=0),)
    attention.prepare(
        AttentionBatch(np.zeros(3, np.int64), np.zeros(1, np.intp), np.ones(1, np.int64), chunks, table, none)
    )
    qkv = _tensor(3, shape.num_heads + 2 * shape.num_kv_heads, shape.head_dim)
    attention.forward(0, *torch.split(qkv, [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads], dim=1))


def _tensor(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(sizes, dtype=dtype, device=_META)


def compile_all(capability: int) -> None:
    """Compile the kernels of all models for a compute capability into TRITON_CACHE_DIR; for a process of its own."""
    only_compile(capability)
    for sizes in MODELS.values():
        for tensor_parallel in sizes.tensor_parallel:
            launch_all(sizes, tensor_parallel, has_fp8=capability >= _FP8_SINCE)


def main() -> None:
    os.environ |= {"TRITON_CACHE_DIR": sys.argv[1], "TRITON_STORE_BINARY_ONLY": "1"}
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_all, SHARED_MEMORY))


if __name__ == "__main__":
    main()
