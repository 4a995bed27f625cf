"""Steps as CUDA graphs: one launch instead of hundreds, over a ladder of shapes.

A graph replays kernels with the shapes and addresses they were captured with. So a step runs the graph of the least
shape that holds it, its further tokens and rows being padding; all that a graph reads or writes lies in buffers that
stay where they are. A shape has two graphs: one takes its tokens from the feed and computes logits, the other chooses
tokens and feeds them to the next step. Between them logits can be masked; log-probabilities are launched behind them.

All graphs are captured at start, largest first, into one memory pool: they never run at once, so the smaller ones fit
into what the largest took. That costs tens of milliseconds a shape at start (51 shapes for 256 sequences), and
no request then meets a step that is ten times as long as its neighbours.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from inflight_engine.execution.attention.base import AttentionBatch, StepShape
from inflight_engine.execution.batch import PackedStep
from inflight_engine.execution.forward import Forward, StepInputs
from inflight_engine.execution.sampling.sampler import Sampler
from inflight_engine.execution.step_shapes import fitting_shape
from inflight_engine.execution.token_feed import TokenFeed, choose_and_feed
from inflight_engine.models.protocol import Model

log = logging.getLogger(__name__)

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Takes what is to be captured, and returns what replays it."""

_NONE = np.empty(0, np.int64)
_NO_BATCH = AttentionBatch(_NONE, _NONE, _NONE, (), _NONE[:, None], _NONE)


class Sampled(NamedTuple):
    """Results of a step that samples n tokens; those of a replayed step are valid until the next one. `logits`: float32
    [n, vocab_size]. `token_ids`: int64 [n], fed to the next step already."""

    logits: torch.Tensor
    token_ids: torch.Tensor


class StepGraphs:
    """The graphs of one model.

    Args:
        forward: the forward pass whose inputs the graphs read.
        shapes: ascending; see `step_shapes`.
        vocab_size: width of the logits.
    """

    def __init__(
        self,
        model: Model,
        forward: Forward,
        feed: TokenFeed,
        sampler: Sampler,
        shapes: Sequence[StepShape],
        vocab_size: int,
        device: torch.device,
    ) -> None:
        self._model = model
        self._forward = forward
        self._feed = feed
        self._sampler = sampler
        self._shapes = tuple(shapes)
        self._graphs: dict[StepShape, tuple[Callable[[], None], Callable[[], None]]] = {}
        # Shared by all graphs, which would otherwise keep logits for every shape of the ladder.
        most_rows = max(shape.num_sequences for shape in shapes)
        self._logits = torch.empty((most_rows, vocab_size), dtype=torch.float32, device=device)
        self._chosen = torch.empty(most_rows, dtype=torch.int64, device=device)

    def try_capture(self, capture: Capture) -> bool:
        """Capture every shape, largest first. False, and a line in the log: the model or its attention does something
        that cannot be captured; nothing may be replayed then."""
        try:
            self._capture(capture)
        except Exception as error:
            log.warning("no CUDA graphs, so small batches will be slower: %s", error)
            return False
        return True

    def replay(self, packed: PackedStep, mask: Callable[[torch.Tensor], torch.Tensor] | None = None) -> Sampled | None:
        """Run a step; None: no shape holds it.

        Args:
            mask: changes the logits of the sampled rows, float32 [n, vocab_size], before tokens are chosen; returns
                those to report.
        """
        attention = packed.attention
        num_sequences = len(attention.decode_slots) + len(attention.chunks)
        decodes_only = not attention.chunks
        shape = fitting_shape(self._shapes, len(packed.positions), num_sequences, decodes_only=decodes_only)
        if shape is None:
            return None
        self._forward.send(packed, shape)
        compute, choose = self._graphs[shape]
        num_sampled = len(packed.sampled_slots)
        logits = self._logits[:num_sampled]
        compute()
        if mask is not None:
            logits = mask(logits)
        choose()
        return Sampled(logits, self._chosen[:num_sampled])

    @torch.inference_mode()
    def _capture(self, capture: Capture) -> None:
        for shape in reversed(self._shapes):
            chunked = None if shape.decodes_only else _NONE
            empty = PackedStep(_NONE, chunked, _NONE, _NO_BATCH, chunked, _NONE, _NONE)
            compute, choose = self._step(self._forward.send(empty, shape))
            self._graphs[shape] = (capture(compute), capture(choose))

    def _step(self, inputs: StepInputs) -> tuple[Callable[[], None], Callable[[], None]]:
        slots, positions = inputs.sampled_slots, inputs.sampled_positions
        logits, chosen = self._logits[: len(slots)], self._chosen[: len(slots)]

        def compute() -> None:
            self._model.logits(self._forward.run(inputs), logits)

        def choose() -> None:
            chosen.copy_(choose_and_feed(self._sampler, self._feed, logits, slots, positions))

        return compute, choose


class CudaCapture:
    """Captures into one memory pool.

    A step that waits for the device cannot be captured, and after the attempt some versions of torch can free no memory
    any more. So the first of each kind, forward passes and choices of tokens, is tried with such waits forbidden.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._num_untried = 2

    def __call__(self, step: Callable[[], None]) -> Callable[[], None]:
        step()  # What happens once (compiling, choosing kernels, workspaces) must not be part of the graph.
        if self._num_untried:
            _run_without_waiting(step)
            self._num_untried -= 1
        graph = torch.cuda.CUDAGraph()
        # Some versions of torch leave the capture's stream the current one when it fails.
        with (
            torch.cuda.stream(torch.cuda.current_stream()),
            torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"),
        ):
            step()
        return graph.replay


def _run_without_waiting(step: Callable[[], None]) -> None:
    """Raises RuntimeError where the step waits for the device."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that the mode does not find every wait
        torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode(before)
