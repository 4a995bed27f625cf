"""Numbers that the kernels' code fixes (tiles, warps, stages, splits, up to how many rows), each beside others.

A case is a kernel with such numbers at one size. It is launched once for each of several copies of what it reads, so
that no cache holds them, in a CUDA graph. All cases are first compiled, by processes that need no GPU.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import torch.nn.functional as F

from inflight_engine.execution import few_rows, int4_matmul
from inflight_engine.execution.attention import triton_paged
from inflight_engine.execution.attention.base import AttentionBatch, AttentionSpec
from inflight_engine.execution.attention.triton_tiles import Tiles, decode_tiles, prefill_tiles
from inflight_engine.execution.int4_matmul import Tile
from inflight_engine.execution.sampling.device_sampler import DeviceSampler
from inflight_engine.execution.triton_ops import TritonOps
from inflight_engine.models.checkpoints.shape import ModelShape
from inflight_engine.models.matrices import Int4Matrix
from inflight_engine.models.ops import Ops, TorchOps
from tools.bench.gpu.kernels import BLOCK, decodes, sampler_of, whole_prompts
from tools.bench.gpu.not_here import NotHereError
from tools.bench.gpu.quantized import GROUP, Tinygemm
from tools.bench.gpu.report import IN_FORCE

SECONDS = 105
"""Maximum duration of a sweep after its imports; cases that are left then are left out."""
_COMPILE_SECONDS = 45
_RESERVE = 5
"""Seconds within which the last case ends."""
_COPIED_BYTES = 256 << 20
"""Size of all copies together: several times that of an H200's L2."""
_MOST_COPIES = 64
_REPLAYS = 10
_HEADS, _KV_HEADS, _HEAD_DIM = 32, 8, 128


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of all cases.

    Attributes:
        four_bits, plain: outputs and inputs of weights.
        heads: vocabulary and hidden size. sampled: rows of logits.
        prompts, decodes: sequences and tokens of each.
    """

    four_bits: tuple[tuple[int, int], ...]
    plain: tuple[tuple[int, int], ...]
    prompts: tuple[tuple[int, int], ...]
    decodes: tuple[tuple[int, int], ...]
    heads: tuple[tuple[int, int], ...]
    sampled: tuple[int, ...]


SIZES = {
    "full": Sizes(
        ((14336, 4096), (4096, 14336)),
        (
            *((6144, 1024), (4096, 1024), (1024, 2048), (1024, 3072)),  # Qwen3-0.6B
            *((12288, 2048), (4096, 2048), (2048, 2048), (2048, 6144)),  # Qwen3-1.7B
            *((28672, 4096), (6144, 4096), (4096, 4096), (4096, 14336)),  # Llama-3-8B
        ),
        ((8, 1024), (1, 16384), (32, 200)),
        ((1, 200), (32, 200), (256, 200), (64, 1000), (256, 1000), (1, 4000), (32, 4000), (256, 4000)),
        ((151_936, 1024), (128_256, 4096)),
        (1, 32, 256),
    ),
    "small": Sizes(((64, 256),), ((48, 64),), ((2, 20),), ((2, 40),), ((100, 16),), (2,)),
}
_FILTERS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "temperature 1": {"temperature": 1.0},
    "temperature 0.6, top_k 20, top_p 0.95": {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    "temperature 0.6, top_p 0.9": {"temperature": 0.6, "top_p": 0.9},
    "temperature 0.2, top_k 50": {"temperature": 0.2, "top_k": 50},
}
_LIKELY = 40
"""Tokens of a row of logits that stand out, as they do in a model's."""
_THREADS = ((4, 64), (4, 32), (4, 128), (2, 64), (1, 64), (8, 64), (8, 32))
_PREFILL = (
    *((128, 64, 8, 3), (128, 64, 4, 3), (64, 128, 4, 3), (64, 64, 4, 3), (128, 128, 8, 2), (128, 64, 8, 4)),
    *((256, 64, 8, 3), (128, 128, 4, 2), (128, 64, 4, 4)),
)
_DECODE = ((64, 4, 3), (64, 4, 4), (64, 2, 5), (32, 2, 5), (32, 4, 5), (128, 4, 3), (128, 8, 3), (64, 8, 4))
"""Keys, warps and stages."""


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel at one size with numbers of its own.

    Attributes:
        launch: computes the result with the copy of a number.
        expected: computes the right one; None: there is none.
        work: bytes or floating-point operations of a launch; `unit` is that of work in 10^-12 a second.
    """

    what: str
    size: str
    variant: str
    copies: int
    launch: Callable[[int], torch.Tensor]
    expected: Callable[[], torch.Tensor] | None
    work: float
    unit: str = "TB/s"


def sweep(lines: str, device: str, size: str, _folder: Path) -> dict[str, Any]:
    """Time all cases; each is a line of JSON in the file `lines` and a printed line as soon as it is known. In Triton's
    interpreter they only run."""
    if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise NotHereError("kernels run on a GPU, or with TRITON_INTERPRET=1 where Triton interprets them")
    until = time.monotonic() + SECONDS - _RESERVE
    if device == "cuda":
        _compile_all(size)
    dtype = torch.bfloat16 if device == "cuda" else torch.float16  # what the interpreter multiplies
    done = failed = 0
    left_out = "none"
    for case in cases(torch.device(device), dtype, SIZES[size]):
        if time.monotonic() > until:
            left_out = f"from {case.what}, {case.size}, {case.variant} on"
            break
        found = _timed(case, device)
        done, failed = done + 1, failed + ("failed" in found)
        with Path(lines).open("a") as file:
            file.write(json.dumps({"what": case.what, "size": case.size, "variant": case.variant} | found) + "\n")
        told = found.get("failed") or ", ".join(f"{name} {value:.4g}" for name, value in found.items())
        print(f"{case.what} | {case.size} | {case.variant} | {told}", flush=True)
    return {"cases": done, "failed_cases": failed, "left_out": left_out}


def cases(device: torch.device, dtype: torch.dtype, sizes: Sizes) -> Iterator[Case]:
    """All cases, those that decide most first."""
    return chain(
        _four_bits(device, dtype, sizes.four_bits, (1, 16, 256)),
        _plain(device, dtype, sizes.plain, (1, 8)),
        _prefill(device, dtype, sizes.prompts),
        _decode(device, dtype, sizes.decodes),
        _logits(device, dtype, sizes.heads),
        _sampling(device, sizes.heads[0][0], sizes.sampled),
        _four_bits(device, dtype, sizes.four_bits, (64, 128, 4)),
        _plain(device, dtype, sizes.plain, (4, 2)),
    )


@torch.inference_mode()
def _timed(case: Case, device: str) -> dict[str, Any]:
    """Return microseconds of a launch, the error relative to the length of the right result, and the rate; or
    `failed`."""
    try:
        result, found = case.launch(0), {}
        if case.expected is not None:
            expected = case.expected().double()
            found["error"] = float((result.double() - expected).norm() / expected.norm())
        if device == "cuda":
            seconds = _seconds(case)
            found |= {"us": 1e6 * seconds, case.unit: case.work / seconds / 1e12}
    except Exception as error:  # shared memory that a chip lacks, most of all
        return {"failed": f"{type(error).__name__}: {error}".replace("\n", " ")[:200]}
    return found


def _seconds(case: Case) -> float:
    """Return the median of the seconds of a launch."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for copy in range(case.copies):
            case.launch(copy)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    times: list[float] = []
    for _ in range(_REPLAYS):
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / case.copies)
    return statistics.median(times[1:])


def _compile_all(size: str) -> None:
    """Compile the kernels of all cases, in as many processes as there are cores, into TRITON_CACHE_DIR."""
    major, minor = torch.cuda.get_device_capability()
    workers, context = max(1, (os.cpu_count() or 1) - 2), get_context("spawn")
    until = time.monotonic() + _COMPILE_SECONDS
    processes = [
        context.Process(target=compile_share, args=(10 * major + minor, size, at, workers)) for at in range(workers)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
        process.terminate()
    print(f"compiled in {_COMPILE_SECONDS - until + time.monotonic():.0f} s", flush=True)


def compile_share(capability: int, size: str, at: int, workers: int) -> int:
    """Compile every case of which the number modulo `workers` is `at`, in a process of its own.

    Returns:
        Number of those that failed.
    """
    from inflight_engine.execution.shipped_kernels import SHARED_MEMORY, only_compile

    failed = 0
    only_compile(capability if capability in SHARED_MEMORY else max(SHARED_MEMORY))
    for number, case in enumerate(cases(torch.device("meta"), torch.bfloat16, SIZES[size])):
        if number % workers == at:
            try:
                case.launch(0)
            except Exception as error:  # it fails again where it is timed, and is a line there
                print(f"{case.what}, {case.variant}: {type(error).__name__}", flush=True)
                failed += 1
    return failed


def _four_bits(
    device: torch.device, dtype: torch.dtype, sides: Sequence[tuple[int, int]], counts: Sequence[int]
) -> Iterator[Case]:
    """Products with weights of 4 bits, beside cuBLAS, with bfloat16 or with dequantized weights, and tinygemm."""
    for outputs, inputs in sides:
        half = min(GROUP, inputs // 2)
        groups = (inputs // half, outputs)
        octets = torch.randint(0, 256, (outputs, inputs // 2), dtype=torch.uint8, device=device)
        scales, zeros = torch.rand(groups, device=device).to(dtype) / 64, torch.full(groups, 8, device=device).byte()
        copies = _copies(outputs * inputs // 2)
        matrices = [Int4Matrix(octets.clone(), scales, zeros, half) for _ in range(copies)]
        meant = matrices[0].dequantized(dtype)
        plain = [meant.clone() for _ in range(_copies(2 * outputs * inputs))]
        what, size, unpacked = "4 bits", f"{outputs}x{inputs}", outputs * inputs / 2
        for wide, num_warps in ((32, 4), (16, 4), (64, 4), (64, 8), (128, 8)) if 1 in counts else ():
            name = ("" if wide != 32 else f"{IN_FORCE}: ") + f"{wide} outputs, {num_warps} warps"
            launch = partial(_dequantized, matrices, dtype, wide, num_warps)
            yield Case("dequantize 4 bits", size, name, copies, launch, lambda m=meant: m, 5 * unpacked)  # type: ignore[misc]
        for count in counts:
            x = torch.randn(count, inputs, device=device).to(dtype)
            expected = cache(partial(_product, x, meant))
            at = (what, f"{size}, {count} rows")
            yield Case(*at, IN_FORCE, copies, partial(_int4, x, matrices), expected, unpacked)
            yield Case(*at, "bfloat16, cuBLAS", len(plain), partial(_cublas, x, plain), expected, 4 * unpacked)
            yield Case(*at, "dequantized, cuBLAS", copies, partial(_by_cublas, x, matrices), expected, unpacked)
            if device.type == "cuda" and count <= 16:
                others = [Tinygemm(matrix.grouped()) for matrix in matrices]
                yield Case(*at, "tinygemm", copies, partial(_tinygemm, x, others), expected, unpacked)
            for tile, splits in _four_bit_variants(count):
                name = f"{tile.outputs} outputs, {tile.rows} rows, {tile.num_warps} warps, {tile.num_stages} stages"
                launch = partial(_tiled, x, matrices, tile, splits)
                yield Case(*at, f"{name}, {splits} splits", copies, launch, expected, unpacked)


def _four_bit_variants(count: int) -> Iterator[tuple[Tile, int]]:
    if count <= 16:
        sizes, splits = ((64, 4, 4), (64, 4, 3), (64, 4, 6), (32, 4, 4), (128, 4, 3), (128, 8, 4)), (1, 2, 4, 8)
        yield from ((Tile(16, *size), number) for size in sizes for number in splits)
        return
    for tile in (Tile(64, 64, 4, 3), Tile(64, 64, 4, 2), Tile(64, 128, 8, 3), Tile(32, 64, 4, 3), Tile(128, 64, 8, 2)):
        yield from ((tile, number) for number in (1, 2, 4))
    yield Tile(128, 128, 8, 2), 1
    yield Tile(128, 128, 8, 3), 1


def _plain(
    device: torch.device, dtype: torch.dtype, sides: Sequence[tuple[int, int]], counts: Sequence[int]
) -> Iterator[Case]:
    """Products of few rows, beside cuBLAS."""
    for count in counts:
        for outputs, inputs in sides:
            weight = torch.randn(outputs, inputs, device=device).to(dtype)
            weights = [weight.clone() for _ in range(_copies(weight.nbytes))]
            x = torch.randn(count, inputs, device=device).to(dtype)
            expected = cache(partial(_product, x, weight))
            at = ("few rows", f"{outputs}x{inputs}, {count} rows")
            rest = (expected, float(weight.nbytes))
            yield Case(*at, IN_FORCE, len(weights), partial(_linear, x, weights), *rest)
            yield Case(*at, "cuBLAS", len(weights), partial(_cublas, x, weights), *rest)
            padded, seen = 1 << (inputs - 1).bit_length(), set()
            for threads in (few_rows.Threads(*each) for each in _THREADS):
                tile = max(1, 32 * threads.num_warps * threads.elements // padded)
                if (threads.num_warps, tile) in seen or tile * padded > 128 * 32 * threads.num_warps:
                    continue  # another has the same tile, or a thread has not the registers
                seen.add((threads.num_warps, tile))
                name = f"{threads.num_warps} warps, {threads.elements} elements a thread"
                yield Case(*at, name, len(weights), partial(_few_rows, x, weights, threads), *rest)


def _logits(device: torch.device, dtype: torch.dtype, heads: Sequence[tuple[int, int]]) -> Iterator[Case]:
    """Logits in float32, by the product itself or converted."""
    for vocab, hidden in heads:
        weights = [torch.randn(vocab, hidden, device=device).to(dtype) for _ in range(2)]
        for count in (1, 256):
            x, out = torch.randn(count, hidden, device=device).to(dtype), torch.empty(count, vocab, device=device)
            at, rest = ("logits", f"{vocab}x{hidden}, {count} rows"), (float(weights[0].nbytes + out.nbytes),)
            expected = cache(partial(_product, x, weights[0]))
            yield Case(*at, IN_FORCE, 2, partial(_wide, TritonOps(), x, weights, out), expected, *rest)
            yield Case(*at, "converted", 2, partial(_wide, TorchOps(), x, weights, out), expected, *rest)


def _sampling(device: torch.device, vocab: int, counts: Sequence[int]) -> Iterator[Case]:
    """Draws from a few likely tokens and many others."""
    row = torch.randn(vocab, device=device) * 2.5
    row[:_LIKELY] += torch.linspace(4, 14, _LIKELY, device=device)
    row = row[torch.randperm(vocab, device=device)]
    for count in counts:
        logits, slots = row.expand(count, -1).contiguous(), torch.arange(count, device=device)
        for name, how in _FILTERS.items():
            meta = device.type == "meta"  # nothing is sent there
            sampler = DeviceSampler(count, vocab, device) if meta else sampler_of(count, vocab, device, how)
            launch = partial(_sampled, sampler, logits, slots)
            yield Case("sampling", f"{count} rows, {name}", IN_FORCE, 1, launch, None, float(logits.nbytes))


def _prefill(device: torch.device, dtype: torch.dtype, prompts: Sequence[tuple[int, int]]) -> Iterator[Case]:
    """Whole prompts. A causal one computes half of its square."""
    in_force = _in_force(prefill_tiles, device, dtype)
    for count, length in prompts:
        flops = 2.0 * count * length**2 * _HEADS * _HEAD_DIM
        at = ("prefill", f"{count} of {length} tokens")
        yield from _attention(at, device, dtype, count, length, (in_force, *(Tiles(*each) for each in _PREFILL)), flops)


def _decode(device: torch.device, dtype: torch.dtype, decodes: Sequence[tuple[int, int]]) -> Iterator[Case]:
    """A decode of each sequence."""
    in_force = _in_force(decode_tiles, device, dtype)
    variants = (in_force, *(Tiles(in_force.rows, *each) for each in _DECODE))
    for count, length in decodes:
        at = ("decode", f"{count} of {length} tokens")
        yield from _attention(at, device, dtype, count, length, variants, None)


def _attention(
    at: tuple[str, str],
    device: torch.device,
    dtype: torch.dtype,
    count: int,
    length: int,
    variants: Sequence[Tiles],
    flops: float | None,
) -> Iterator[Case]:
    """Attention of `count` sequences of `length` tokens; `flops` of a step; None: of decodes. The first variant is in
    force, and the others are held against it."""
    blocks = -(-(length + 1) // BLOCK)
    read = 4.0 * count * length * _KV_HEADS * _HEAD_DIM
    layers = _copies(int(read)) if flops is None else 1
    shape = ModelShape("", 1, blocks * BLOCK, layers, _HEADS, _KV_HEADS, _HEAD_DIM, (None,) * layers)
    most = count if flops is None else count * length
    spec = AttentionSpec(shape, count * blocks, BLOCK, dtype, dtype, device, count, most, blocks * BLOCK)
    table = np.arange(count * blocks).reshape(count, blocks)
    batch = decodes(table, length) if flops is None else whole_prompts(table, length)
    if device.type == "meta":  # a table is sent by pinned memory, which needs a GPU
        batch = msgspec.structs.replace(batch, changed_cells=np.zeros(0, np.int64))
    heads = (_HEADS, _KV_HEADS, _KV_HEADS)
    qkv = [torch.randn(len(batch.kv_slots), each, _HEAD_DIM, device=device).to(dtype) for each in heads]
    first: list[torch.Tensor] = []
    rest = (read, "TB/s") if flops is None else (flops, "TFLOP/s")
    for tiles in variants:
        name = f"{tiles.rows} rows, {tiles.keys} keys, {tiles.num_warps} warps, {tiles.num_stages} stages"
        name = name if tiles is not variants[0] else f"{IN_FORCE}: {name}"
        attention = _Attention(spec, batch, qkv, tiles, is_decode=flops is None, first=first)
        yield Case(*at, name, layers, attention, partial(first.__getitem__, 0), *rest)


class _Attention:
    """A step with tiles of its own. `first` gets the first result of all cases that share it."""

    def __init__(
        self,
        spec: AttentionSpec,
        batch: AttentionBatch,
        qkv: Sequence[torch.Tensor],
        tiles: Tiles,
        *,
        is_decode: bool,
        first: list[torch.Tensor],
    ) -> None:
        self._spec, self._batch, self._qkv, self._tiles, self._first = spec, batch, qkv, tiles, first
        self._name = "decode_tiles" if is_decode else "prefill_tiles"
        self._backend: triton_paged.TritonBackend | None = None

    def __call__(self, layer: int) -> torch.Tensor:
        if self._backend is None:
            self._backend = self._made()
        result = self._backend.forward(layer, *self._qkv)
        if not self._first:
            self._first.append(result)
        return result

    def _made(self) -> triton_paged.TritonBackend:
        chosen = getattr(triton_paged, self._name)
        setattr(triton_paged, self._name, lambda *_: self._tiles)
        try:
            backend = triton_paged.TritonBackend(self._spec)
        finally:
            setattr(triton_paged, self._name, chosen)
        generator = torch.Generator(self._spec.device).manual_seed(0) if self._spec.device.type != "meta" else None
        for layer in backend._cache:
            layer.normal_(generator=generator)
        backend.prepare(self._batch)
        return backend


def _in_force(choose: Callable[..., Tiles], device: torch.device, dtype: torch.dtype) -> Tiles:
    return choose(_HEAD_DIM, _HEADS // _KV_HEADS, dtype.itemsize, triton_paged._chip(device)[1])


def _copies(size: int) -> int:
    return max(2, min(_MOST_COPIES, _COPIED_BYTES // size)) if torch.cuda.is_available() else 2


def _product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x.float() @ weight.float().t()


def _int4(x: torch.Tensor, matrices: Sequence[Int4Matrix], copy: int) -> torch.Tensor:
    return int4_matmul.int4_linear(x, matrices[copy], None, batch_invariant=False)


def _tiled(x: torch.Tensor, matrices: Sequence[Int4Matrix], tile: Tile, splits: int, copy: int) -> torch.Tensor:
    return int4_matmul.tiled(x, matrices[copy], None, tile, splits)


def _dequantized(
    matrices: Sequence[Int4Matrix], dtype: torch.dtype, tile: int, num_warps: int, copy: int
) -> torch.Tensor:
    return int4_matmul.dequantized(matrices[copy], dtype, tile, num_warps)


def _tinygemm(x: torch.Tensor, matrices: Sequence[Tinygemm], copy: int) -> torch.Tensor:
    return matrices[copy](x)


def _by_cublas(x: torch.Tensor, matrices: Sequence[Int4Matrix], copy: int) -> torch.Tensor:
    return F.linear(x, int4_matmul.dequantized(matrices[copy], x.dtype))


def _cublas(x: torch.Tensor, weights: Sequence[torch.Tensor], copy: int) -> torch.Tensor:
    return F.linear(x, weights[copy])


def _linear(x: torch.Tensor, weights: Sequence[torch.Tensor], copy: int) -> torch.Tensor:
    return TritonOps().linear(x, weights[copy], None)


def _wide(ops: Ops, x: torch.Tensor, weights: Sequence[torch.Tensor], out: torch.Tensor, copy: int) -> torch.Tensor:
    return ops.wide_linear(x, weights[copy], out)


def _sampled(sampler: DeviceSampler, logits: torch.Tensor, slots: torch.Tensor, _copy: int) -> torch.Tensor:
    return sampler.choose(logits, slots, slots)


def _few_rows(x: torch.Tensor, weights: Sequence[torch.Tensor], threads: few_rows.Threads, copy: int) -> torch.Tensor:
    return few_rows.linear(x, weights[copy], None, threads)
