"""This project's engine, in process: the loop of the engine process without its socket."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from bench.engine.drivers.base import DECODE_WARM_UP_STEPS, run
from inflight_engine.config import EngineConfig
from inflight_engine.engine_process import load
from inflight_engine.messages import AddRequest, StepReport
from inflight_engine.request import SamplingParams


class InflightDriver:
    """Settings are fields of `EngineConfig`."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._engine, ready = load(EngineConfig(**settings))
        self.vocab_size = ready.vocab_size
        quantization = settings.get("quantization", "none")
        weights = "" if quantization == "none" else f", weights in {quantization}"
        self.engine = f"inflight, {ready.dtype}{weights}, attention {ready.attention_backend}"
        self._next_id = 0

    def generate(self, prompts: list[list[int]], output_tokens: int) -> int:
        self._add(prompts, output_tokens)
        return sum(_num_tokens(report) for report in self._steps())

    def decode(self, prompts: list[list[int]], steps: int) -> float:
        self._add(prompts, steps + 2 * DECODE_WARM_UP_STEPS + len(prompts))
        reports = self._steps()
        for _ in range(DECODE_WARM_UP_STEPS):
            while not _all_decode(next(reports), len(prompts)):
                pass
        started = time.perf_counter()
        for _ in range(steps):
            if not _all_decode(next(reports), len(prompts)):
                raise RuntimeError("a step in the middle of decoding did something else")
        seconds = time.perf_counter() - started
        for _ in reports:
            pass
        return seconds

    def _add(self, prompts: list[list[int]], output_tokens: int) -> None:
        sampling = SamplingParams(max_tokens=output_tokens)
        for prompt in prompts:
            self._engine.handle(
                AddRequest(self._next_id, np.array(prompt, np.int32).tobytes(), sampling, float(self._next_id))
            )
            self._next_id += 1

    def _steps(self) -> Iterator[StepReport]:
        while self._engine.has_work:
            report = self._engine.step()
            if report is not None:  # else a step was launched, and none has ended
                yield report


def _num_tokens(report: StepReport) -> int:
    return len(report.token_ids) // np.dtype(np.int32).itemsize


def _all_decode(report: StepReport, num_prompts: int) -> bool:
    return report.stats.num_decode_tokens == num_prompts and report.stats.num_prefill_tokens == 0


if __name__ == "__main__":
    run(InflightDriver)
