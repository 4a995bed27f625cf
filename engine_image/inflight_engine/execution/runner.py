"""The runner: turns step plans into tokens, if allowed one step ahead of the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch

from inflight_engine.execution.batch import PackedStep, PersistentBatch
from inflight_engine.execution.forward import Forward
from inflight_engine.execution.graphs import Sampled, StepGraphs
from inflight_engine.execution.host_cache import HostCache
from inflight_engine.execution.memory.fetch import Fetch
from inflight_engine.execution.pieces import Pieces
from inflight_engine.execution.sampling.logprobs import Reported, token_logprobs
from inflight_engine.execution.sampling.prompt_logprobs import PromptSpan, PromptTensors, prompt_reports, score_prompts
from inflight_engine.execution.sampling.sampler import Sampler
from inflight_engine.execution.token_feed import TokenFeed, choose_and_feed
from inflight_engine.models.protocol import Model
from inflight_engine.output import StepOutput
from inflight_engine.request import NO_TOKENS, TokenIds
from inflight_engine.runner_info import RunnerInfo
from inflight_engine.scheduling.plan import Slots, StepPlan

_NO_SLOTS: Slots = np.empty(0, np.intp)


@dataclass(frozen=True, slots=True, eq=False)
class StepParts:
    """What steps are computed with; each belongs to one `Runner`.

    Attributes:
        graphs: of small steps; None: all steps are launched kernel by kernel.
        pieces: of steps for which the device has no memory at once; None: such a step fails.
    """

    model: Model
    forward: Forward
    batch: PersistentBatch
    feed: TokenFeed
    sampler: Sampler
    host_cache: HostCache
    graphs: StepGraphs | None
    pieces: Pieces | None
    on_gpu: bool


class Runner:
    """Launches and collects. A `StepExecutor`.

    Positions, lengths and block tables of a step follow from the plans alone, and its decodes read their tokens on the
    device. So a step can be launched while the one before it runs.

    Args:
        info: what it says of itself.
        lookahead: whether a second step may be launched before the first is collected.
    """

    def __init__(self, parts: StepParts, info: RunnerInfo, *, lookahead: bool) -> None:
        self.info = info
        self.lookahead = lookahead
        self._parts = parts
        self._most_in_flight = 2 if lookahead else 1
        self._in_flight: deque[_InFlight] = deque()
        self._inference_mode = torch.inference_mode()  # once: as a decorator it is made anew in every call

    def launch(self, plan: StepPlan) -> None:
        """See `StepExecutor`."""
        if len(self._in_flight) == self._most_in_flight:
            raise AssertionError(f"{self._most_in_flight} steps are launched and not collected")
        try:
            with self._inference_mode:
                self._in_flight.append(self._compute(plan))
        except torch.OutOfMemoryError as error:
            raise MemoryError(str(error)) from error

    def collect(self) -> StepOutput:
        """See `StepExecutor`."""
        step = self._in_flight.popleft()
        try:
            return step.wait()
        except Exception:
            self._in_flight.clear()
            raise

    def _compute(self, plan: StepPlan) -> _InFlight:
        """What the plan copies out, what it changes, what it copies in, then its tokens."""
        parts = self._parts
        for preemption in plan.preemptions:
            parts.host_cache.copy_out(preemption.block_ids.tolist(), preemption.host_block_ids)
        parts.batch.apply(plan)
        parts.sampler.apply(plan)
        parts.feed.start(plan.starts)
        for start in plan.starts:
            if start.host_block_ids:
                parts.host_cache.copy_in(start.host_block_ids, start.block_ids[: len(start.host_block_ids)].tolist())
        if plan.num_tokens == 0:
            return _InFlightPiece(Fetch((), parts.on_gpu), _NO_SLOTS)
        packed = parts.batch.pack(plan)
        if parts.pieces is None:
            return self._fetch(packed, self._run(packed))
        pieces: list[_InFlight] = []
        for piece, computed in parts.pieces.compute(packed, self._run):
            # On its way to the host before the next one is computed, which may replay the same graph.
            pieces.append(self._fetch(piece, computed))
            del computed  # memory that the next one may need
        if len(pieces) == 1 and not parts.pieces.ran_out:
            return pieces[0]
        return _InFlightPieces(pieces, packed.sampled_slots, parts.pieces)

    def _run(self, packed: PackedStep) -> _Computed:
        """The step, by replaying a graph where one holds it, else launched kernel by kernel. Prompts are scored without
        graphs."""
        parts, prompts, num_sampled = self._parts, packed.prompts, len(packed.sampled_slots)
        replayed = parts.graphs.replay(packed) if parts.graphs is not None and prompts is None else None
        if replayed is not None:
            return _Computed(replayed if num_sampled else None)
        inputs = parts.forward.send(packed)
        hidden = parts.forward.run(inputs)
        scored = None
        if prompts is not None:
            count = max(span.num_top for span in prompts.spans)
            # First: on a CPU each call overwrites the logits of the one before, and those of sampled rows are needed.
            scored = score_prompts(
                parts.model.logits, hidden[num_sampled:], prompts.token_ids, count, self.info.vocab_size
            )
        if not num_sampled:
            return _Computed(None, scored)
        logits = parts.model.logits(hidden[:num_sampled])
        slots, positions = inputs.sampled_slots, inputs.sampled_positions
        return _Computed(Sampled(logits, choose_and_feed(parts.sampler, parts.feed, logits, slots, positions)), scored)

    def _fetch(self, packed: PackedStep, computed: _Computed) -> _InFlightPiece:
        """Begin to bring what was computed to the host."""
        parts, slots, sampled, scored = self._parts, packed.sampled_slots, computed.sampled, computed.scored
        tensors, reported = [], None
        if sampled is not None:
            reported = parts.sampler.report(sampled.logits, sampled.token_ids, slots)
            tensors = [sampled.token_ids]
            tensors += () if reported is None or reported.tensors is None else reported.tensors
        spans = packed.prompts.spans if packed.prompts is not None else ()
        return _InFlightPiece(Fetch([*tensors, *(scored or ())], parts.on_gpu), slots, reported, spans)


class _Computed(NamedTuple):
    """Of a step. `sampled`: None: it samples nothing. `scored`: of its prompt tokens to score, None: there are none."""

    sampled: Sampled | None
    scored: PromptTensors | None = None


class _InFlight(Protocol):
    """A launched step."""

    def wait(self) -> StepOutput:
        """The step's output, once it is computed."""
        ...


class _InFlightPieces:
    """A step that is computed in pieces.

    Args:
        slots: of all tokens that the step samples.
        how: what has become of it, until the next step.
    """

    def __init__(self, pieces: Sequence[_InFlight], slots: Slots, how: Pieces) -> None:
        self._pieces = pieces
        self._slots = slots
        self._failed_slots = tuple(how.failed_slots)
        self._ran_out = how.ran_out

    def wait(self) -> StepOutput:
        outputs = [piece.wait() for piece in self._pieces]
        token_ids = np.zeros(len(self._slots), np.int32)
        token_ids[~np.isin(self._slots, self._failed_slots)] = np.concatenate([each.token_ids for each in outputs])
        return StepOutput(
            token_ids,
            [logprobs for each in outputs for logprobs in each.logprobs],
            (*self._failed_slots, *(slot for each in outputs for slot in each.failed_slots)),
            [scored for each in outputs for scored in each.prompt_logprobs if scored.slot not in self._failed_slots],
            self._ran_out,
        )


class _InFlightPiece:
    """A step, or a piece of one.

    Args:
        fetch: tokens where there are sampled slots, then the tensors of `reported`, then `PromptTensors` where there
            are spans.
    """

    def __init__(
        self, fetch: Fetch, slots: Slots, reported: Reported | None = None, spans: Sequence[PromptSpan] = ()
    ) -> None:
        self._fetch = fetch
        self._slots = slots
        self._reported = reported
        self._spans = spans

    def wait(self) -> StepOutput:
        on_host = self._fetch.wait()
        token_ids: TokenIds = on_host[0].astype(np.int32) if len(self._slots) else NO_TOKENS
        prompts = prompt_reports(on_host[-len(PromptTensors._fields) :], self._spans) if self._spans else []
        reported = self._reported
        if reported is None:
            return StepOutput(token_ids, [], prompt_logprobs=prompts)
        if reported.tensors is None:
            return StepOutput(token_ids, [], tuple(reported.slots.tolist()), prompts)
        sampled, top_token_ids, top = on_host[1:4]
        reports = token_logprobs(sampled, top_token_ids, top, reported.slots, reported.num_top)
        return StepOutput(token_ids, reports, prompt_logprobs=prompts)
