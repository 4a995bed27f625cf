"""The runner: turns step plans into tokens, if allowed one step ahead of the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from inflight_engine.execution.batch import PackedStep, PersistentBatch
from inflight_engine.execution.forward import Forward
from inflight_engine.execution.graphs import Sampled, StepGraphs
from inflight_engine.execution.host_cache import HostCache
from inflight_engine.execution.memory.staging import Fetch
from inflight_engine.execution.memory.zeros import trim
from inflight_engine.execution.pieces import Pieces
from inflight_engine.execution.sampling.grammar_masks import GrammarMasks, GrammarRow, take_tokens
from inflight_engine.execution.sampling.logprobs import Reported, token_logprobs
from inflight_engine.execution.sampling.pooling import PooledRows, PooledSlots
from inflight_engine.execution.sampling.prompt_logprobs import PromptSpan, PromptTensors, prompt_reports, score_prompts
from inflight_engine.execution.sampling.sampler import Sampler
from inflight_engine.execution.token_feed import TokenFeed, choose_and_feed
from inflight_engine.models.protocol import Model
from inflight_engine.output import SharedBlocks, StepOutput
from inflight_engine.request import NO_TOKENS, TokenIds
from inflight_engine.runner_info import RunnerInfo
from inflight_engine.scheduling.plan import Slots, SlotStart, StepPlan

_NO_SLOTS: Slots = np.empty(0, np.intp)


class Runner:
    """Launches and collects. A `StepExecutor`.

    Positions, lengths and block tables of a step follow from the plans alone, and its decodes read their tokens on the
    device. So a step can be launched while the one before it runs. Where a request has a grammar, its forward pass is
    launched so, and its tokens are chosen when those of the step before are on the host and masks follow from them.

    Args:
        masks: of requests with a grammar.
        graphs: CUDA graphs of small steps; None: all steps are launched kernel by kernel.
        pieces: cuts steps for which the device has no memory; None: such a step fails.
        lookahead: a second step may be launched before the first is collected.

    Attributes:
        host_cache: the memory behind the KV cache.
    """

    def __init__(
        self,
        info: RunnerInfo,
        model: Model,
        forward: Forward,
        feed: TokenFeed,
        sampler: Sampler,
        batch: PersistentBatch,
        host_cache: HostCache,
        masks: GrammarMasks,
        *,
        graphs: StepGraphs | None,
        pieces: Pieces | None,
        lookahead: bool,
    ) -> None:
        self.info = info
        self.host_cache = host_cache
        self.lookahead = lookahead
        self._model = model
        self._forward = forward
        self._feed = feed
        self._sampler = sampler
        self._batch = batch
        self._masks = masks
        self._pooled = PooledSlots()
        self._graphs = graphs
        self._pieces = pieces
        self._on_gpu = info.device.startswith("cuda")
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

    def share_blocks(self, block_ids: Sequence[int], host_block_ids: Sequence[int]) -> SharedBlocks:
        """See `StepExecutor`."""
        with self._inference_mode:
            return self.host_cache.share(block_ids, host_block_ids)

    def free_cache(self) -> None:
        """See `StepExecutor`. Addresses stay, so nothing that points into the cache has to be made again."""
        if not self.info.can_sleep:
            raise AssertionError("CUDA graphs and pinned memory keep the addresses of a GPU's cache")
        self._forward.free_cache()
        self.host_cache.free()
        trim()

    def _compute(self, plan: StepPlan) -> _InFlight:
        """Run one step: offload blocks, update slots, load blocks, then compute the tokens."""
        if plan.stores is not None:
            self.host_cache.copy_out(plan.stores.block_ids.tolist(), plan.stores.host_block_ids.tolist())
        self._batch.apply(plan)
        self._sampler.apply(plan)
        self._masks.apply(plan)
        self._pooled.apply(plan)
        self._feed.start(plan.all_starts)
        loads = self._load([start for start in plan.starts if start.host_block_ids])
        if plan.num_tokens == 0:
            return _InFlight([_Piece(Fetch((), self._on_gpu), _NO_SLOTS)], _NO_SLOTS, loads=loads)
        if self._pieces is None:
            launched, failed, ran_out = [self._fetch(self._run(plan))], [], False
        else:
            launched = []
            for computed in self._pieces.compute(plan, self._run):
                # On its way to the host before the next one is computed, which may replay the same graph.
                launched.append(self._fetch(computed))
                del computed  # memory that the next one may need
            failed, ran_out = self._pieces.failed_slots, self._pieces.ran_out
        self._batch.advance(plan)
        return _InFlight(launched, plan.sampled_slots, tuple(failed), ran_out, loads)

    def _load(self, starts: Sequence[SlotStart]) -> _Loads | None:
        """Copy in what these find in host memory."""
        if not starts:
            return None
        size = self.info.block_size
        damaged = self.host_cache.copy_in([(start.host_block_ids, start.loaded(size).tolist()) for start in starts])
        return _Loads([start.slot for start in starts], Fetch([damaged], self._on_gpu))

    def _run(self, plan: StepPlan) -> _Computed:
        """Compute a plan's tokens by replaying a graph where one holds them, else kernel by kernel. Prompts are scored
        and pooled without graphs."""
        packed = self._batch.pack(plan)
        prompts, num_sampled = packed.prompts, len(packed.sampled_slots)
        rows = self._masks.rows(packed.sampled_slots)
        mask = partial(self._mask, rows) if rows else None
        pooled, replayed = self._pooled.rows(packed.sampled_slots), None
        if self._graphs is not None and prompts is None and pooled is None:
            replayed = self._graphs.replay(packed, mask)
        if replayed is not None:
            return _Computed(packed, replayed if num_sampled else None, rows=rows)
        inputs = self._forward.send(packed)
        hidden = self._forward.run(inputs)
        scored = None
        if prompts is not None:
            count = max(span.num_top for span in prompts.spans)
            # First: on a CPU each call overwrites the logits of the one before, and those of sampled rows are needed.
            scored = score_prompts(
                self._model.logits, hidden[num_sampled:], prompts.token_ids, count, self.info.vocab_size
            )
        if not num_sampled:
            return _Computed(packed, None, scored)
        vectors = None if pooled is None else pooled.take(hidden)
        logits = self._model.logits(hidden[:num_sampled])
        reported = logits if mask is None else mask(logits)
        slots, positions = inputs.sampled_slots, inputs.sampled_positions
        token_ids = choose_and_feed(self._sampler, self._feed, logits, slots, positions)
        return _Computed(packed, Sampled(reported, token_ids), scored, rows, pooled, vectors)

    def _mask(self, rows: Sequence[GrammarRow], logits: torch.Tensor) -> torch.Tensor:
        """Mask the rows in place, when the tokens of all earlier steps are there; returns the logits to report."""
        for step in self._in_flight:
            step.wait()
        reported = logits.clone() if self._sampler.reports else logits
        self._masks.mask(rows, logits)
        return reported

    def _fetch(self, computed: _Computed) -> _Piece:
        """Begin to bring what was computed to the host."""
        packed, sampled, scored, rows, pooled, vectors = computed
        slots, tensors, reported = packed.sampled_slots, [], None
        if sampled is not None:
            reported = self._sampler.report(sampled.logits, sampled.token_ids, slots)
            tensors = [sampled.token_ids]
            tensors += () if reported is None or reported.tensors is None else reported.tensors
        if vectors is not None:
            tensors.append(vectors)
        spans = packed.prompts.spans if packed.prompts is not None else ()
        return _Piece(Fetch([*tensors, *(scored or ())], self._on_gpu), slots, reported, spans, rows, pooled)


class _Computed(NamedTuple):
    """Results of a step or a piece, on the device. `sampled`: None: it samples nothing. `scored`: the scores of its
    prompt tokens; None: no request asks for them. `rows`: sampled with a grammar.
    `pooled`, `vectors`: the rows whose hidden states are asked for, and these."""

    packed: PackedStep
    sampled: Sampled | None
    scored: PromptTensors | None = None
    rows: Sequence[GrammarRow] = ()
    pooled: PooledRows | None = None
    vectors: torch.Tensor | None = None


class _Loads(NamedTuple):
    """Copies in of a step. `damaged`: float32, one for each slot: above 0 where one was not what was copied out."""

    slots: Sequence[int]
    damaged: Fetch

    def failed(self) -> tuple[int, ...]:
        return tuple(self.slots[index] for index in np.flatnonzero(self.damaged.wait()[0]).tolist())


class _InFlight:
    """A launched step.

    Args:
        slots: the slot of each token that the step samples.
        failed_slots: slots whose chunk was not computed.
        ran_out: an attempt to compute the step had no memory.
        loads: None: nothing was copied in.
    """

    def __init__(
        self,
        pieces: list[_Piece],
        slots: Slots,
        failed_slots: tuple[int, ...] = (),
        ran_out: bool = False,
        loads: _Loads | None = None,
    ) -> None:
        self._pieces = pieces
        self._slots = slots
        self._failed_slots = failed_slots
        self._ran_out = ran_out
        self._loads = loads
        self._output: StepOutput | None = None

    def wait(self) -> StepOutput:
        """The step's output, once it is computed; its tokens go to the grammars of their requests."""
        if self._output is None:
            self._output = self._wait()
            if self._loads is not None:
                self._output = self._output._replace(failed_loads=self._loads.failed())
        return self._output

    def _wait(self) -> StepOutput:
        outputs = [piece.wait() for piece in self._pieces]
        if len(outputs) == 1 and not self._ran_out:
            return outputs[0]
        token_ids = np.zeros(len(self._slots), np.int32)
        token_ids[~np.isin(self._slots, self._failed_slots)] = np.concatenate([each.token_ids for each in outputs])
        return StepOutput(
            token_ids,
            [logprobs for each in outputs for logprobs in each.logprobs],
            (*self._failed_slots, *(slot for each in outputs for slot in each.failed_slots)),
            [scored for each in outputs for scored in each.prompt_logprobs if scored.slot not in self._failed_slots],
            self._ran_out,
            [end for each in outputs for end in each.grammar_ends],
            [pooled for each in outputs for pooled in each.pooled],
            [forced for each in outputs for forced in each.forced],
        )


class _Piece(NamedTuple):
    """A launched step, or a piece of one.

    Attributes:
        fetch: tokens where there are sampled slots, then the tensors of `reported`, then the hidden states of `pooled`,
            then `PromptTensors` where there are spans.
        rows: sampled with a grammar.
        pooled: rows whose hidden states are asked for; None: none are.
    """

    fetch: Fetch
    slots: Slots
    reported: Reported | None = None
    spans: Sequence[PromptSpan] = ()
    rows: Sequence[GrammarRow] = ()
    pooled: PooledRows | None = None

    def wait(self) -> StepOutput:
        """The piece's output, once it is computed."""
        on_host, reported = self.fetch.wait(), self.reported
        token_ids: TokenIds = on_host[0].astype(np.int32) if len(self.slots) else NO_TOKENS
        prompts = prompt_reports(on_host[-len(PromptTensors._fields) :], self.spans) if self.spans else []
        ends, forced = take_tokens(self.rows, token_ids) if self.rows else ((), ())
        vectors = []
        if self.pooled is not None:
            num_reported = 0 if reported is None or reported.tensors is None else len(reported.tensors)
            vectors = self.pooled.reports(on_host[1 + num_reported])
        output = StepOutput(token_ids, [], prompt_logprobs=prompts, grammar_ends=ends, pooled=vectors, forced=forced)
        if reported is None:
            return output
        if reported.tensors is None:
            return output._replace(failed_slots=tuple(reported.slots.tolist()))
        sampled, top_token_ids, top = on_host[1:4]
        return output._replace(logprobs=token_logprobs(sampled, top_token_ids, top, reported.slots, reported.num_top))
