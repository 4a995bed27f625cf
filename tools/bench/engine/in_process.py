"""This project's engine without its process and socket: requests in, tokens out, one step at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from threading import Semaphore

import numpy as np

from inflight_engine.engine_process import load
from inflight_engine.messages import AddRequest, StepReport
from inflight_engine.output import TokenLogprobs
from inflight_engine.request import SamplingParams
from inflight_settings.engine import EngineConfig


@dataclass(slots=True)
class Generated:
    """Results of a run.

    Attributes:
        outputs: token ids of each request, in the order of `add`.
        num_steps: steps that were computed.
        loaded_blocks: copied in from host memory, since the engine was loaded.
        prefix_hits: prompt tokens found in the prefix cache, since the engine was loaded.
        logprobs: log-probabilities of each request that asked for them, by token.
    """

    outputs: list[list[int]]
    num_steps: int = 0
    loaded_blocks: int = 0
    prefix_hits: int = 0
    logprobs: list[list[TokenLogprobs]] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.outputs))


class InProcessEngine:
    """A loaded engine. What ends a request is its length alone."""

    def __init__(self, config: EngineConfig) -> None:
        self._compiled = Semaphore(0)
        self._engine, self.ready = load(config, wake=self._compiled.release)
        self._next_id = 0

    def add(self, prompts: Sequence[Sequence[int]], output_tokens: Sequence[int], temperature: float = 0.0) -> None:
        for prompt, length in zip(prompts, output_tokens, strict=True):
            self._add(prompt, SamplingParams(max_tokens=length, temperature=temperature))

    def _add(self, prompt: Sequence[int], sampling: SamplingParams) -> None:
        token_ids = np.array(prompt, np.int32).tobytes()
        self._engine.handle(AddRequest(self._next_id, token_ids, sampling, float(self._next_id)))
        self._next_id += 1
        if sampling.grammar is not None:
            self._compiled.acquire()

    def reports(self) -> Iterator[StepReport]:
        """Steps until there is no more work."""
        while self._engine.has_work:
            report = self._engine.step()
            if report is not None:  # else a step was launched, and none has ended
                yield report

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        output_tokens: Sequence[int],
        temperature: float = 0.0,
        *,
        sampling: Sequence[SamplingParams] | None = None,
        steps_between: int = 0,
    ) -> Generated:
        """Runs all requests to their end.

        Args:
            sampling: of each, its `max_tokens` aside; None: `temperature` alone.
            steps_between: after so many steps the next request is added; 0: all are at once.
        """
        how = sampling or [SamplingParams(max_tokens=1, temperature=temperature)] * len(prompts)
        requests = [replace(each, max_tokens=length) for each, length in zip(how, output_tokens, strict=True)]
        waiting = list(zip(prompts, requests, strict=True))[::-1]
        first = self._next_id
        for _ in range(1 if steps_between else len(waiting)):
            self._add(*waiting.pop())
        generated = Generated([[] for _ in prompts], logprobs=[[] for _ in prompts])
        owner: dict[int, int] = {}
        for report in self.reports():
            owner |= {admission.slot: admission.request_id - first for admission in report.admitted}
            slots, token_ids = np.frombuffer(report.slots, np.int32), np.frombuffer(report.token_ids, np.int32)
            for slot, token_id in zip(slots.tolist(), token_ids.tolist(), strict=True):
                generated.outputs[owner[slot]].append(token_id)
            for entry in report.logprobs:
                generated.logprobs[owner[entry.slot]].append(entry)
            generated.num_steps += 1
            generated.loaded_blocks = report.stats.num_loaded_blocks
            generated.prefix_hits = report.stats.prefix_hits
            if waiting and generated.num_steps % steps_between == 0:
                self._add(*waiting.pop())
        assert not waiting, "a request ended before the next was added"
        return generated
