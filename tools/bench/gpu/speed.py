"""This engine's speed on a device, with a model of a given shape and random weights."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from inflight_settings.engine import Device, EngineConfig
from tools.bench.engine.drivers.ceilings import measure as measure_ceilings
from tools.bench.engine.drivers.ours import decode_seconds
from tools.bench.engine.in_process import InProcessEngine
from tools.bench.engine.jobs import Job
from tools.bench.engine.roofline import Ceilings, Costs, limit
from tools.bench.gpu.idle import profile
from tools.bench.gpu.not_here import NotHereError
from tools.bench.gpu.shapes import SHAPES, random_weights, write_config
from tools.bench.gpu.workload import TEMPERATURE, Workload, nano

CEILING_SIZES = {"cuda": (4 << 30, 8192), "cpu": (16 << 20, 256)}
"""Bytes that are read, and the side of the matrices, to find what a device can do."""
_CEILING_SECONDS = 0.2
"""Seconds of each of four measurements, which a product of float32 on a GPU takes a part of."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured.

    Attributes:
        workload: of nano-vllm's benchmark.
        batches: sizes at which decoding is timed.
    """

    workload: Workload
    batches: tuple[int, ...]
    decode_steps: int
    prompt_tokens: int
    num_prompts: int
    max_model_len: int


FULL = Size(nano(), (1, 32, 256), 64, 1024, 8, 4096)
SMALL = Size(nano(6, 4, 24, 500), (1, 3), 4, 48, 2, 128)
"""So that the same code runs on a CPU in a test."""
SIZES = {"full": FULL, "small": SMALL}
_LEFT = 96 << 20
"""Bytes that a device has left for a prefill: less than it takes."""


def ceilings(device: str) -> Ceilings:
    """Bytes read and operations a second that torch reaches on a device."""
    num_bytes, side = CEILING_SIZES[device]
    return Ceilings(**measure_ceilings(device, stream_bytes=num_bytes, matrix=side, seconds_each=_CEILING_SECONDS))


def measure(shape: str, device: str, size_name: str, folder: Path) -> dict[str, Any]:
    """All figures of this engine, by name; `report` says what they are."""
    size, found = SIZES[size_name], ceilings(device)
    engine = load(shape, device, size, folder)
    figures: dict[str, Any] = {
        "attention": engine.ready.runner.attention_backend,
        "load_seconds": engine.ready.runner.load_seconds,
        "bytes_per_second": found.bytes_per_second,
        "flops_per_second": found.flops_per_second,
    }
    engine.generate(*_uniform(2, size.prompt_tokens, 4))  # what is compiled at first use is compiled now
    figures["continuous"] = _tokens_per_second(engine, size.workload)
    costs = Costs.of_folder(folder)
    for batch in size.batches:
        job = Job("decode", (size.prompt_tokens // 8,) * batch, size.decode_steps)
        prompts = _uniform(batch, size.prompt_tokens // 8, 1)[0]
        seconds = decode_seconds(engine, prompts, size.decode_steps)
        figures[f"decode_{batch}"] = batch * size.decode_steps / seconds
        read, _ = costs.decode(batch, size.prompt_tokens / 8 + size.decode_steps / 2)
        figures[f"decode_{batch}_bandwidth"] = read * size.decode_steps / seconds / found.bytes_per_second
        figures[f"decode_{batch}_limit"] = limit(job, costs, found).seconds / seconds
    prompts, one = _uniform(size.num_prompts, size.prompt_tokens, 1)
    seconds = min(_seconds(lambda: engine.generate(prompts, one)) for _ in range(3))
    flops = sum(costs.prefill(len(prompt))[1] for prompt in prompts)
    figures["prefill"] = size.num_prompts * size.prompt_tokens / seconds
    figures["prefill_matrix"] = flops / seconds / found.flops_per_second
    if device == "cuda":
        figures["profiles"] = _profiles(engine, size, device)
        figures["decode_busy"] = figures["profiles"][f"decode at {size.batches[1]}"]["busy"]
    return figures


def load(shape: str, device: str, size: Size, folder: Path, **options: Any) -> InProcessEngine:
    """An engine of a model of a shape with random weights; `options` as in `EngineConfig`."""
    config = SHAPES[shape]
    write_config(folder, config)
    settings: dict[str, Any] = {
        "max_model_len": size.max_model_len,
        "max_num_seqs": max(size.batches),
        "kv_cache_memory": None if device == "cuda" else 64 << 20,
    }
    with random_weights(config, device):
        return InProcessEngine(
            EngineConfig(
                str(folder), dtype="bfloat16", device=cast(Device, device), prefix_caching=False, **settings | options
            )
        )


def eager(shape: str, device: str, _size: str, folder: Path) -> dict[str, Any]:
    """A few steps of a small model without graphs, for a memory checker, which makes each many times as long."""
    engine = load(shape, device, SMALL, folder, enforce_eager=True, async_scheduling=False, kv_cache_memory=64 << 20)
    prompts, lengths = _uniform(3, 20, 4)
    generated = engine.generate(prompts, lengths, 0.7, steps_between=2)
    return {"ok": generated.num_tokens == sum(lengths), "steps": generated.num_steps}


def profiles(shape: str, device: str, size_name: str, folder: Path) -> dict[str, Any]:
    """Decoding at each batch size and prefill, as `profile` gives them."""
    size = SIZES[size_name]
    found = _profiles(load(shape, device, size, folder), size, device)
    return {f"{name}, {figure}": value for name, figures in found.items() for figure, value in figures.items()}


def _profiles(engine: InProcessEngine, size: Size, device: str) -> dict[str, dict[str, Any]]:
    jobs = {f"decode at {batch}": (batch, size.prompt_tokens // 8, size.decode_steps) for batch in size.batches}
    jobs["prefill"] = (size.num_prompts, size.prompt_tokens, 1)
    found: dict[str, dict[str, Any]] = {}
    for name, job in jobs.items():
        requests = _uniform(*job)
        engine.generate(*requests)  # compiles
        found[name] = profile(lambda r=requests: engine.generate(*r), device)  # type: ignore[misc]
        print(name, found[name], flush=True)
    return found


def out_of_memory(shape: str, device: str, size_name: str, folder: Path) -> dict[str, Any]:
    """A prefill for which the device has no memory left: all tokens come."""
    if device != "cuda":
        raise NotHereError("only the memory of a GPU is used up")
    size = SIZES[size_name]
    engine = load(shape, device, size, folder, kv_cache_memory=2 << 30)
    torch.cuda.empty_cache()
    hog = torch.empty(torch.cuda.mem_get_info()[0] - _LEFT, dtype=torch.uint8, device=device)
    prompts, lengths = _uniform(size.num_prompts, size.prompt_tokens, 4)
    engine.add(prompts, lengths)
    reports = list(engine.reports())
    num_tokens = sum(len(report.token_ids) // 4 for report in reports)
    times = reports[-1].stats.num_out_of_memory
    return {"ok": num_tokens == sum(lengths) and times > 0, "times": times, "tokens": num_tokens, "hog": len(hog)}


def _tokens_per_second(engine: InProcessEngine, workload: Workload) -> float:
    """Output tokens.

    Raises:
        RuntimeError: not all came.
    """
    started = time.perf_counter()
    num_tokens = engine.generate(workload.prompts, workload.output_tokens, TEMPERATURE).num_tokens
    seconds = time.perf_counter() - started
    if num_tokens != workload.num_output_tokens:
        raise RuntimeError(f"{num_tokens} output tokens came, not {workload.num_output_tokens}")
    return num_tokens / seconds


def _uniform(num_prompts: int, prompt_tokens: int, output_tokens: int) -> tuple[list[list[int]], list[int]]:
    prompts = [[(7 * index + at) % 500 for at in range(prompt_tokens)] for index in range(num_prompts)]
    return prompts, [output_tokens] * num_prompts


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
