"""The runner: turns step plans into tokens, one step ahead of what the host knows where that is allowed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import torch

from inflight_engine.execution.batch import PackedStep, PersistentBatch
from inflight_engine.execution.forward import Forward
from inflight_engine.execution.graphs import StepGraphs
from inflight_engine.execution.host_cache import HostCache
from inflight_engine.execution.memory.fetch import Fetch
from inflight_engine.execution.sampling.logprobs import token_logprobs
from inflight_engine.execution.sampling.state import Choice, Reported, SamplingState
from inflight_engine.execution.token_feed import TokenFeed
from inflight_engine.models.protocol import Model
from inflight_engine.output import StepOutput
from inflight_engine.request import NO_TOKENS, TokenIds
from inflight_engine.runner_info import RunnerInfo
from inflight_engine.scheduling.plan import Slots, StepPlan

_NOTHING = StepOutput(NO_TOKENS, [])


@dataclass(frozen=True, slots=True, eq=False)
class StepParts:
    """What steps are computed with; each belongs to one `Runner`.

    Attributes:
        graphs: of small steps; None: all steps are launched kernel by kernel.
    """

    model: Model
    forward: Forward
    batch: PersistentBatch
    feed: TokenFeed
    host_cache: HostCache
    graphs: StepGraphs | None
    on_gpu: bool


class Runner:
    """Launches and collects. A `StepExecutor`.

    Positions, lengths and block tables of a step follow from the plans alone, and its decodes read their tokens on the
    device. So a step can be launched while the one before it runs. Where the tokens of that one change what may be
    chosen (penalties), the launch waits for them first: correct, and as slow as without a step ahead.

    Args:
        info: what it says of itself.
        lookahead: whether a second step may be launched before the first is collected.
    """

    def __init__(self, parts: StepParts, info: RunnerInfo, max_num_seqs: int, *, lookahead: bool) -> None:
        self.info = info
        self.lookahead = lookahead
        self._parts = parts
        self._sampling = SamplingState(max_num_seqs)
        self._most_in_flight = 2 if lookahead else 1
        self._in_flight: deque[_InFlight] = deque()
        self._inference_mode = torch.inference_mode()  # once: as a decorator it is made anew in every call

    def launch(self, plan: StepPlan) -> None:
        """See `StepExecutor`."""
        if len(self._in_flight) == self._most_in_flight:
            raise AssertionError(f"{self._most_in_flight} steps are launched and not collected")
        with self._inference_mode:
            for step in self._in_flight:
                if step.needs_tokens:
                    step.wait(self._sampling)
            self._in_flight.append(self._compute(plan))

    def collect(self) -> StepOutput:
        """See `StepExecutor`."""
        step = self._in_flight.popleft()
        try:
            return step.wait(self._sampling)
        except Exception:
            self._in_flight.clear()
            raise

    def _compute(self, plan: StepPlan) -> _InFlight:
        """What the plan copies out, what it changes, what it copies in, then its tokens."""
        parts = self._parts
        for preemption in plan.preemptions:
            parts.host_cache.copy_out(preemption.block_ids.tolist(), preemption.host_block_ids)
        parts.batch.apply(plan)
        self._sampling.apply(plan)
        parts.feed.start(plan.starts)
        for start in plan.starts:
            if start.host_block_ids:
                parts.host_cache.copy_in(start.host_block_ids, start.block_ids[: len(start.host_block_ids)].tolist())
        if plan.num_tokens == 0:
            return _InFlight(Fetch((), parts.on_gpu))
        packed = parts.batch.pack(plan)
        choice = self._tokens(packed)
        if choice is None:
            return _InFlight(Fetch((), parts.on_gpu))
        slots, reported = packed.sampled_slots, choice.reported
        tensors = () if reported is None else reported.tensors
        fetch = Fetch((choice.token_ids, *tensors), parts.on_gpu)
        return _InFlight(fetch, slots, reported, choice.needs_tokens)

    def _tokens(self, packed: PackedStep) -> Choice | None:
        """The step's tokens, by replaying a graph where one holds it, else launched kernel by kernel; None: the step
        samples nothing."""
        parts = self._parts
        replayed = parts.graphs.replay(packed) if parts.graphs is not None else None
        samples = len(packed.sampled_slots) > 0
        if replayed is not None:
            return self._choose(packed, *replayed) if samples else None
        inputs = parts.forward.send(packed)
        hidden = parts.forward.run(inputs)
        return self._choose(packed, inputs.sampled_slots, parts.model.logits(hidden), None) if samples else None

    def _choose(
        self, packed: PackedStep, slots: torch.Tensor, logits: torch.Tensor, chosen: torch.Tensor | None
    ) -> Choice:
        """Feed what is chosen to the next step; `chosen` by a graph is fed already."""
        choice = self._sampling.choose(logits, packed.sampled_slots, packed.sampled_positions, chosen)
        if choice.token_ids is not chosen:
            self._parts.feed.put(slots, choice.token_ids)
        return choice


class _InFlight:
    """A launched step.

    Attributes:
        needs_tokens: the next launch has to wait for this step's tokens.
    """

    def __init__(
        self,
        fetch: Fetch,
        slots: Slots | None = None,
        reported: Reported | None = None,
        needs_tokens: bool = False,
    ) -> None:
        self.needs_tokens = needs_tokens
        self._fetch = fetch
        self._slots = slots
        self._reported = reported

    def wait(self, sampling: SamplingState) -> StepOutput:
        """The step's output, once it is computed; may be asked for twice."""
        on_host = self._fetch.wait()
        if self._slots is None:
            return _NOTHING
        token_ids: TokenIds = on_host[0].astype(np.int32)
        if self.needs_tokens:
            sampling.learn(self._slots, token_ids)
            self.needs_tokens = False
        if self._reported is None:
            return StepOutput(token_ids, [])
        sampled, top_token_ids, top = on_host[1:]
        reports = token_logprobs(sampled, top_token_ids, top, self._reported.slots, self._reported.num_top)
        return StepOutput(token_ids, reports)
