"""This project's engine, in process."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from inflight_engine.grammars import sources
from inflight_engine.messages import StepReport
from inflight_engine.request import SamplingParams
from inflight_engine.torch_environment import let_threads_sleep
from inflight_settings.engine import EngineConfig
from tools.bench.engine.drivers.base import DECODE_WARM_UP_STEPS, run
from tools.bench.engine.in_process import InProcessEngine


class InflightDriver:
    """Settings are fields of `EngineConfig`."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._engine = InProcessEngine(EngineConfig(**settings))
        runner = self._engine.ready.runner
        self.vocab_size = runner.vocab_size
        quantization = settings.get("quantization", "none")
        weights = "" if quantization == "none" else f", weights in {quantization}"
        self.engine = f"inflight, {runner.dtype}{weights}, attention {runner.attention_backend}, {_units()}"

    def generate(self, prompts: list[list[int]], output_tokens: int, schemas: list[dict[str, Any]]) -> int:
        how = [SamplingParams(1, grammar=sources.of_schema("schema", schema).text) for schema in schemas]
        return self._engine.generate(prompts, [output_tokens] * len(prompts), sampling=how).num_tokens

    def decode(self, prompts: list[list[int]], steps: int) -> float:
        return decode_seconds(self._engine, prompts, steps)


def _units() -> str:
    """Returns the name of the kernels that compute."""
    import torch  # how its threads wait is settled first

    from inflight_engine.native.library import library

    kernels = library()
    name = "torch" if kernels is None else f"CPU kernels {Path(kernels._name).stem.removeprefix('libinflight-')}"
    threads = torch.get_num_threads()
    return f"{name} on {threads} {'core' if threads == 1 else 'cores'}"


def decode_seconds(engine: InProcessEngine, prompts: list[list[int]], steps: int) -> float:
    """See `base.Driver.decode`.

    Raises:
        RuntimeError: what is timed was not decoding alone.
    """
    # They come in over several steps at most; every one decodes beyond the last step that is timed.
    engine.add(prompts, [steps + 2 * DECODE_WARM_UP_STEPS + len(prompts)] * len(prompts))
    reports = engine.reports()
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


def _all_decode(report: StepReport, num_prompts: int) -> bool:
    return report.stats.num_decode_tokens == num_prompts and report.stats.num_prefill_tokens == 0


if __name__ == "__main__":
    let_threads_sleep()
    run(InflightDriver)
