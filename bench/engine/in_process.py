"""This project's engine without its process and socket: requests in, tokens out, one step at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from inflight_engine.config import EngineConfig
from inflight_engine.engine_process import load
from inflight_engine.messages import AddRequest, Configure, StepReport
from inflight_engine.request import SamplingParams
from inflight_engine.scheduling.limits import Limits


@dataclass(slots=True)
class Generated:
    """What came of a run.

    Attributes:
        outputs: token ids of each request, in the order of `add`.
        num_steps: that were computed.
        most_swapped_blocks: in host memory at once.
    """

    outputs: list[list[int]]
    num_steps: int = 0
    most_swapped_blocks: int = 0

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.outputs))


class InProcessEngine:
    """A loaded engine. What ends a request is its length alone."""

    def __init__(self, config: EngineConfig) -> None:
        self._engine, self.ready = load(config)
        self._next_id = 0

    def limit(self, max_num_seqs: int) -> None:
        """Run at most so many requests at once from now on."""
        self._engine.handle(Configure(0, Limits(max_num_seqs, self.ready.capacity.max_num_batched_tokens)))

    def add(self, prompts: Sequence[Sequence[int]], output_tokens: Sequence[int], temperature: float = 0.0) -> None:
        for prompt, length in zip(prompts, output_tokens, strict=True):
            sampling = SamplingParams(max_tokens=length, temperature=temperature)
            token_ids = np.array(prompt, np.int32).tobytes()
            self._engine.handle(AddRequest(self._next_id, token_ids, sampling, float(self._next_id)))
            self._next_id += 1

    def reports(self) -> Iterator[StepReport]:
        """Steps until there is no more work."""
        while self._engine.has_work:
            report = self._engine.step()
            if report is not None:  # else a step was launched, and none has ended
                yield report

    def generate(
        self, prompts: Sequence[Sequence[int]], output_tokens: Sequence[int], temperature: float = 0.0
    ) -> Generated:
        """All requests at once, to their end."""
        first = self._next_id
        self.add(prompts, output_tokens, temperature)
        generated = Generated([[] for _ in prompts])
        owner: dict[int, int] = {}
        for report in self.reports():
            owner |= {admission.slot: admission.request_id - first for admission in report.admitted}
            slots, token_ids = np.frombuffer(report.slots, np.int32), np.frombuffer(report.token_ids, np.int32)
            for slot, token_id in zip(slots.tolist(), token_ids.tolist(), strict=True):
                generated.outputs[owner[slot]].append(token_id)
            generated.num_steps += 1
            generated.most_swapped_blocks = max(generated.most_swapped_blocks, report.stats.num_swapped_blocks)
        return generated
