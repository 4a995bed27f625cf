"""Each Triton kernel alone: right, held against plain torch, and how fast."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from inflight_engine.execution.attention.base import AttentionBatch, AttentionSpec, ChunkSpan
from inflight_engine.execution.attention.torch_sdpa import TorchSdpaBackend
from inflight_engine.execution.attention.triton_paged import TritonBackend
from inflight_engine.execution.sampling.device_sampler import DeviceSampler
from inflight_engine.execution.triton_ops import TritonOps
from inflight_engine.models.checkpoints.shape import ModelShape
from inflight_engine.models.ops import TorchOps
from inflight_engine.request import NO_TOKENS, SamplingParams
from inflight_engine.scheduling.plan import SlotStart, StepPlan
from tools.bench.gpu.draws import FILTERS, MOST_EXCESS, excess, probabilities
from tools.bench.gpu.not_here import NotHereError
from tools.bench.gpu.quantized import product_check

_LARGEST_ERROR = 0.01
"""Length of the difference from torch's result over the length of the result; bfloat16 rounds it by 0.002."""
BLOCK = 16
"""Tokens of a block of the KV cache."""


@dataclass(frozen=True, slots=True)
class Case:
    """Sizes of a model and of a step.

    Attributes:
        tokens: of the small operators.
        sequences, context: of attention, and tokens of each.
        draws: from one distribution.
    """

    tokens: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    sequences: int
    context: int
    vocab: int
    draws: int


CASES = {
    "tiny": Case(5, 80, 4, 2, 16, 3, 37, 200, 8),
    "real": Case(2048, 4096, 32, 8, 128, 64, 1024, 151_936, 2048),
}


@torch.inference_mode()
def check(which: str, device: str, _size: str, _folder: Path) -> dict[str, Any]:
    """Check and time all kernels; on a CPU they are interpreted, in float16, which the interpreter multiplies."""
    if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise NotHereError("kernels run on a GPU, or with TRITON_INTERPRET=1 where Triton interprets them")
    dtype = torch.bfloat16 if device == "cuda" else torch.float16
    torch.manual_seed(0)
    found, wrong = {}, []
    for name, is_right, detail in _kernels(CASES[which], device, dtype):
        found[name] = detail
        wrong += [] if is_right else [name]
        print(f"{name}: {detail}", flush=True)
    summary = f"{len(found)} kernels, wrong: {', '.join(wrong) or 'none'}"
    return {"ok": not wrong, "detail": summary, "kernels": found, "registers and spills": _compiled()}


def _kernels(case: Case, device: str, dtype: torch.dtype) -> Iterator[tuple[str, bool, str]]:
    """(name, whether it is right, figures) of each."""
    for name, arguments in _operators(case, device, dtype).items():
        ours, plain = getattr(TritonOps(), name), getattr(TorchOps(), name)
        found, expected = ours(*_copies(arguments)), plain(*_copies(arguments))
        yield _held(name, found, expected, partial(ours, *_copies(arguments)), device)
    yield from _attention(case, device, dtype)
    yield from _sampler(case, device)
    for bits in (8, 4) if device == "cuda" else ():
        yield f"products with weights of {bits} bits", *product_check(device, bits)


def _operators(case: Case, device: str, dtype: torch.dtype) -> dict[str, tuple[Any, ...]]:
    """Arguments of each."""
    heads, kv_heads, head_dim, eps = case.heads, case.kv_heads, case.head_dim, 1e-6

    def random(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.randn(shape, device=device).to(dtype)

    x, weight = random(case.tokens, case.hidden), random(case.hidden)
    norms, positions = (random(head_dim), random(head_dim)), torch.arange(case.tokens, device=device)
    angles = random(case.tokens, head_dim // 2, dtype=torch.float32)
    table = torch.cat([angles.cos(), angles.sin()], dim=1)
    qkv = random(case.tokens, (heads + 2 * kv_heads) * head_dim)
    return {
        "rms_norm": (x, weight, eps),
        "add_rms_norm": (x, random(case.tokens, case.hidden), weight, eps),
        "rotary": (qkv, positions, table, heads, kv_heads, norms, eps),
        "linear": (x[:4], random(case.hidden, case.hidden), weight),
        "silu_mul": (random(case.tokens, 4 * case.hidden),),
    }


def _attention(case: Case, device: str, dtype: torch.dtype) -> Iterator[tuple[str, bool, str]]:
    """A step of chunks, then a step of decodes of the same sequences."""
    count, length = case.sequences, case.context
    blocks = -(-(length + 1) // BLOCK)
    shape = ModelShape("", 1, blocks * BLOCK, 1, case.heads, case.kv_heads, case.head_dim, (None,))
    spec = AttentionSpec(
        shape, count * blocks, BLOCK, dtype, dtype, torch.device(device), count, count * length, blocks * BLOCK
    )
    table = np.arange(count * blocks).reshape(count, blocks)
    steps = {"prefill": whole_prompts(table, length), "decode": decodes(table, length + 1)}
    ours, plain = TritonBackend(spec), TorchSdpaBackend(spec)
    for name, batch in steps.items():
        heads = (case.heads, case.kv_heads, case.kv_heads)
        qkv = [torch.randn(len(batch.kv_slots), n, case.head_dim, device=device).to(dtype) for n in heads]
        for backend in (ours, plain):
            backend.prepare(batch)
        found, expected = ours.forward(0, *qkv), plain.forward(0, *qkv)
        yield _held(name, found, expected, partial(ours.forward, 0, *qkv), device)


def whole_prompts(table: npt.NDArray[np.int64], length: int) -> AttentionBatch:
    """A step of the prompts of all sequences of a block table, [sequences, blocks] in ascending order."""
    none, tokens = np.zeros(0, np.int64), np.arange(length)
    chunks = tuple(ChunkSpan(slot, slot * length, length, 0) for slot in range(len(table)))
    return AttentionBatch(_kv_slots(table, tokens), none, none, chunks, table, np.arange(table.size))


def decodes(table: npt.NDArray[np.int64], length: int) -> AttentionBatch:
    """A step of decodes of all these sequences, each with the last of `length` tokens."""
    last, count = np.array([length - 1]), len(table)
    slots, lengths = np.arange(count), np.full(count, length)
    return AttentionBatch(_kv_slots(table, last), slots, lengths, (), table, np.arange(table.size))


def _kv_slots(table: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return (table[:, :1] * BLOCK + tokens).ravel()


def sampler_of(count: int, vocab: int, device: torch.device, how: Mapping[str, Any]) -> DeviceSampler:
    """A sampler of which the first `count` slots draw in one way, each with a seed of its own."""
    sampler = DeviceSampler(count, vocab, device)
    samplings = [SamplingParams(1, seed=seed, **how) for seed in range(count)]
    starts = tuple(
        SlotStart(slot, slot, NO_TOKENS, 0, 0, sampling, np.empty(0, np.int32), ())
        for slot, sampling in enumerate(samplings)
    )
    sampler.apply(StepPlan(0, (), (), starts, None, (), np.arange(count), 0))
    return sampler


def _sampler(case: Case, device: str) -> Iterator[tuple[str, bool, str]]:
    """Draws from one distribution, by seed and position, against its probabilities."""
    rows = min(case.draws, 256)
    logits = torch.randn(case.vocab, device=device)
    slots = torch.arange(rows, device=device)
    for name, how in FILTERS.items():
        sampler = sampler_of(rows, case.vocab, torch.device(device), how)
        batch = logits.expand(rows, -1).contiguous()
        drawn = [sampler.choose(batch, slots, slots + rows * at) for at in range(case.draws // rows)]
        over = excess(torch.cat(drawn).tolist(), probabilities(logits, SamplingParams(1, **how)))  # type: ignore[arg-type]
        speed = _speed(partial(sampler.choose, batch, slots, slots), device)
        yield f"sampler, {name}", over <= MOST_EXCESS, f"chi-square {over:+.1f} deviations from its mean{speed}"


def _held(name: str, found: Any, expected: Any, work: Callable[[], Any], device: str) -> tuple[str, bool, str]:
    """Compare a result with the expected one, and time `work`; returns as `_kernels`."""
    pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
    error = max(float((a.double() - b.double()).norm() / b.double().norm()) for a, b in pairs)
    return name, error <= _LARGEST_ERROR, f"off by {error:.5f}{_speed(work, device)}"


def _speed(work: Callable[[], Any], device: str) -> str:
    if device != "cuda":
        return ""
    from triton.testing import do_bench

    return f", {1e3 * do_bench(work, warmup=5, rep=20, return_mode='median'):.1f} us"


def _copies(arguments: tuple[Any, ...]) -> Iterator[Any]:
    """Operators may overwrite their inputs."""
    return (each.clone() if isinstance(each, torch.Tensor) else each for each in arguments)


def _compiled() -> dict[str, list[tuple[int, int]]]:
    """Return the registers of a thread and the registers spilled, by kernel and variant."""
    from triton.runtime.jit import JITFunction

    modules = [module for name, module in sys.modules.items() if name.startswith("inflight_engine.execution")]
    kernels = {id(each): each for module in modules for each in vars(module).values() if isinstance(each, JITFunction)}
    return {
        kernel.__name__: [
            (each.n_regs, each.n_spills) for device in kernel.device_caches.values() for each in device[0].values()
        ]
        for kernel in kernels.values()
        if kernel.device_caches
    }
