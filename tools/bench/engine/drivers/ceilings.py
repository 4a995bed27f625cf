"""Measured limits of a machine, as JSON for all cores: `python -m tools.bench.engine.drivers.ceilings THREADS`.

In a process of its own, so that no threads of torch stay behind in the benchmark's.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial

import torch

_SECONDS_EACH = 1.5


def measure(
    device: str = "cpu", *, stream_bytes: int = 256 << 20, matrix: int = 2048, seconds_each: float = _SECONDS_EACH
) -> dict[str, float]:
    """`bytes_per_second`: the faster of a sum over float32 and of a matrix times a vector. `flops_per_second`: of
    a product of square matrices, the faster of float32 and bfloat16."""
    rows = torch.ones(stream_bytes // 4096, 1024, device=device)
    vector = torch.ones(1024, device=device)
    read = min(_best(work, device, seconds_each) for work in (rows.sum, partial(torch.mv, rows, vector)))
    flops = 0.0
    for dtype in (torch.float32, torch.bfloat16):
        square = torch.randn(matrix, matrix, device=device).to(dtype)
        flops = max(flops, 2 * matrix**3 / _best(partial(torch.matmul, square, square), device, seconds_each))
    return {"bytes_per_second": rows.nbytes / read, "flops_per_second": flops}


def _best(work: Callable[[], object], device: str, seconds_each: float) -> float:
    """Returns the least seconds of as many runs as fit `seconds_each`."""
    best, until = float("inf"), time.perf_counter() + seconds_each
    while time.perf_counter() < until:
        started = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return best


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    print(json.dumps(measure()))
