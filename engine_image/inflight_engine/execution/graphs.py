"""Decode-only steps as CUDA graphs: one launch instead of hundreds, over a ladder of batch sizes.

A graph replays kernels with the shapes and addresses they were captured with. So a step of n decodes runs the graph of
the next size on the ladder, its further rows being padding that belongs to nobody; whatever a graph reads or writes
lies in buffers that stay where they are. The graph of a size takes its tokens from the feed, computes logits, chooses
tokens, and feeds them to the next step. Log-probabilities alone are launched behind it.

All graphs are captured at start, largest first, into one memory pool: they never run at once, so the smaller ones fit
into what the largest took. That costs tens of milliseconds a size at start, and no request then meets a step that is
ten times as long as its neighbours.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch

from inflight_engine.execution.attention.base import AttentionBackend, AttentionBatch, IntArray
from inflight_engine.execution.batch import PackedStep
from inflight_engine.execution.memory.staging import Staging
from inflight_engine.execution.sampling.sampler import Sampler
from inflight_engine.execution.token_feed import TokenFeed, choose_and_feed
from inflight_engine.models.protocol import Model

log = logging.getLogger(__name__)

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Takes what is to be captured, and returns what replays it."""

_NOBODY: IntArray = np.empty(0, np.int64)


def ladder(max_num_seqs: int) -> tuple[int, ...]:
    """Batch sizes that get a graph, ascending: 1, 2, 4, 8, then multiples of 8 up to 64, of 16 up to 256, of 32 beyond,
    and the capacity itself.

    A decode step is bound by reading weights and keys and values, and padding reads neither; matrix products compute
    whole tiles of 8 rows or more anyway. What padding costs is its logits and activations: with at most 7 rows of it
    below 64, 15 below 256 and 31 beyond, little. More sizes would cost start-up time: these are 23 for 256.
    """
    sizes = {1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, max_num_seqs, 32)}
    return tuple(sorted({size for size in sizes if size < max_num_seqs} | {max_num_seqs}))


def padded_size(sizes: Sequence[int], num_decodes: int) -> int | None:
    """The least of the ascending `sizes` that holds a batch; None: all are smaller."""
    index = int(np.searchsorted(sizes, num_decodes))
    return sizes[index] if index < len(sizes) else None


class DecodeGraphs:
    """The graphs of one model.

    Args:
        sizes: ascending; see `ladder`.
        vocab_size: of the logits.
        staging: its first arrays of a step are the graphs' inputs.
    """

    def __init__(
        self,
        model: Model,
        attention: AttentionBackend,
        feed: TokenFeed,
        sampler: Sampler,
        staging: Staging,
        sizes: Sequence[int],
        vocab_size: int,
        device: torch.device,
    ) -> None:
        self._model = model
        self._attention = attention
        self._feed = feed
        self._sampler = sampler
        self._staging = staging
        self._sizes = tuple(sizes)
        self._graphs: dict[int, Callable[[], None]] = {}
        # Shared by all graphs, which would otherwise keep logits for every size of the ladder.
        self._logits = torch.empty((sizes[-1], vocab_size), dtype=torch.float32, device=device)
        self._chosen = torch.empty(sizes[-1], dtype=torch.int64, device=device)

    def try_capture(self, capture: Capture) -> bool:
        """Capture every size, largest first. False, and a line in the log: the model or its attention does something
        that cannot be captured; nothing may be replayed then."""
        try:
            self._capture(capture)
        except Exception as error:
            log.warning("no CUDA graphs, so small batches will be slower: %s", error)
            return False
        return True

    def replay(self, packed: PackedStep) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Run a step of n decodes alone.

        Returns:
            float32 [n, vocab_size]: logits, and int64 [n]: tokens, fed to the next step already; both valid until the
            next replay. None: the step is larger than every graph.
        """
        num_decodes = len(packed.decode_slots)
        size = padded_size(self._sizes, num_decodes)
        if size is None:
            return None
        self._send(packed.decode_slots, packed.positions, size)
        self._attention.prepare(packed.attention, num_padded=size - num_decodes)
        self._graphs[size]()
        return self._logits[:num_decodes], self._chosen[:num_decodes]

    @torch.inference_mode()
    def _capture(self, capture: Capture) -> None:
        for size in reversed(self._sizes):
            slots, positions = self._send(_NOBODY, _NOBODY, size)
            nobody = AttentionBatch(_NOBODY, _NOBODY[:, None], _NOBODY, ())
            self._attention.prepare(nobody, num_padded=size)
            self._graphs[size] = capture(self._step(slots, positions))

    def _send(self, decode_slots: IntArray, decode_positions: IntArray, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        slots = np.full(size, self._feed.padding_slot)
        positions = np.zeros(size, np.int64)
        slots[: len(decode_slots)] = decode_slots
        positions[: len(decode_positions)] = decode_positions
        on_device = self._staging.send(slots, positions)
        return on_device[0], on_device[1]

    def _step(self, slots: torch.Tensor, positions: torch.Tensor) -> Callable[[], None]:
        def step() -> None:
            hidden = self._model.hidden_states(self._feed.take(slots), positions, self._attention)
            logits = self._logits[: len(slots)]
            logits.copy_(self._model.logits(hidden))
            token_ids = choose_and_feed(self._sampler, self._feed, logits, slots, positions + 1)
            self._chosen[: len(slots)].copy_(token_ids)

        return step


class CudaCapture:
    """Captures into one memory pool.

    A step that waits for the device cannot be captured, and after the attempt some versions of torch can free no memory
    any more. So the first step is tried with such waits forbidden before any is captured.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._tried = False

    def __call__(self, step: Callable[[], None]) -> Callable[[], None]:
        step()  # What happens once (compiling, choosing kernels, workspaces) must not be part of the graph.
        if not self._tried:
            _run_without_waiting(step)
            self._tried = True
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
