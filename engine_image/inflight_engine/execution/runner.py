"""The runner: turns step plans into tokens, one step ahead of what the host knows where that is allowed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from inflight_engine.execution.batch import PackedStep, PersistentBatch
from inflight_engine.execution.forward import Forward
from inflight_engine.execution.graphs import Sampled, StepGraphs
from inflight_engine.execution.host_cache import HostCache
from inflight_engine.execution.memory.fetch import Fetch
from inflight_engine.execution.pieces import Pieces
from inflight_engine.execution.sampling.logprobs import Reported, token_logprobs
from inflight_engine.execution.sampling.sampler import Sampler
from inflight_engine.execution.token_feed import TokenFeed, choose_and_feed
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
            return _InFlightPiece(Fetch((), parts.on_gpu))
        packed = parts.batch.pack(plan)
        if parts.pieces is None:
            return self._fetch(packed, self._sample(packed))
        pieces: list[_InFlight] = []
        for piece, sampled in parts.pieces.compute(packed, self._sample):
            # On its way to the host before the next one is computed, which may replay the same graph.
            pieces.append(self._fetch(piece, sampled))
            del sampled  # memory that the next one may need
        if len(pieces) == 1 and not parts.pieces.ran_out:
            return pieces[0]
        return _InFlightPieces(pieces, packed.sampled_slots, parts.pieces)

    def _fetch(self, packed: PackedStep, sampled: Sampled | None) -> _InFlightPiece:
        """Begin to bring what was sampled to the host."""
        parts = self._parts
        if sampled is None:
            return _InFlightPiece(Fetch((), parts.on_gpu))
        reported = parts.sampler.report(sampled.logits, sampled.token_ids, packed.sampled_slots)
        tensors = () if reported is None or reported.tensors is None else reported.tensors
        return _InFlightPiece(Fetch((sampled.token_ids, *tensors), parts.on_gpu), packed.sampled_slots, reported)

    def _sample(self, packed: PackedStep) -> Sampled | None:
        """The step's logits and tokens, by replaying a graph where one holds it, else launched kernel by kernel; None:
        the step samples nothing."""
        parts = self._parts
        samples = len(packed.sampled_slots) > 0
        replayed = parts.graphs.replay(packed) if parts.graphs is not None else None
        if replayed is not None:
            return replayed if samples else None
        inputs = parts.forward.send(packed)
        hidden = parts.forward.run(inputs)
        if not samples:
            return None
        logits = parts.model.logits(hidden)
        slots, positions = inputs.sampled_slots, inputs.sampled_positions
        return Sampled(logits, choose_and_feed(parts.sampler, parts.feed, logits, slots, positions))


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
            tuple(slot for each in outputs for slot in each.failed_slots),
            self._failed_slots,
            self._ran_out,
        )


class _InFlightPiece:
    """A step, or a piece of one."""

    def __init__(self, fetch: Fetch, slots: Slots | None = None, reported: Reported | None = None) -> None:
        self._fetch = fetch
        self._slots = slots
        self._reported = reported

    def wait(self) -> StepOutput:
        on_host = self._fetch.wait()
        if self._slots is None:
            return _NOTHING
        token_ids: TokenIds = on_host[0].astype(np.int32)
        if self._reported is None:
            return StepOutput(token_ids, [])
        if self._reported.tensors is None:
            return StepOutput(token_ids, [], tuple(self._reported.slots.tolist()))
        sampled, top_token_ids, top = on_host[1:]
        reports = token_logprobs(sampled, top_token_ids, top, self._reported.slots, self._reported.num_top)
        return StepOutput(token_ids, reports)
