"""Measured limits of the machine on all cores, as JSON: `python -m tools.bench.engine.drivers.ceilings THREADS`.

In a process of its own, so that no threads of torch stay behind in the benchmark's.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import torch

_STREAM_BYTES = 256 << 20
_MATRIX = 2048
_SECONDS_EACH = 1.5


def measure(
    threads: int, *, stream_bytes: int = _STREAM_BYTES, matrix: int = _MATRIX, seconds_each: float = _SECONDS_EACH
) -> dict[str, float]:
    """`bytes_per_second`: the faster of a sum over float32 and of a matrix times a vector. `flops_per_second`: of
    a product of square matrices, the faster of float32 and bfloat16."""
    torch.set_num_threads(threads)
    rows = torch.ones(stream_bytes // 4096, 1024)
    vector = torch.ones(1024)
    read = min(_best(rows.sum, seconds_each), _best(lambda: torch.mv(rows, vector), seconds_each))
    flops = 0.0
    for dtype in (torch.float32, torch.bfloat16):
        square = torch.randn(matrix, matrix).to(dtype)
        seconds = _best(lambda square=square: square @ square, seconds_each)  # type: ignore[misc]
        flops = max(flops, 2 * matrix**3 / seconds)
    return {"bytes_per_second": rows.nbytes / read, "flops_per_second": flops}


def _best(work: Callable[[], torch.Tensor], seconds_each: float) -> float:
    """Returns the least seconds of as many runs as fit `seconds_each`."""
    best, until = float("inf"), time.perf_counter() + seconds_each
    while time.perf_counter() < until:
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
