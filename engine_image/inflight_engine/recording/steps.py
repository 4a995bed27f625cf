"""The steps of a recorded run, what each computed and how long it took: what a cost model is fitted to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from inflight_engine.recording.lines import Added, Cancelled, Chunk, Repeated, Step
from inflight_engine.recording.reader import Recording, RecordingError


class StepEntry(NamedTuple):
    """One step that gave tokens.

    Attributes:
        seconds: the whole step, scheduling included.
        num_running: requests that held a slot.
        num_decodes: requests that computed one token each.
        num_prefill_tokens: prompt tokens computed (and tokens lost in a preemption, computed again).
        decode_kv_tokens: tokens whose keys and values the decodes read, their own included, all together.
        prefill_context_tokens: for each prefill token the tokens it attends to, its own included, summed.
        num_copied_tokens: tokens whose keys and values were copied to or from host memory.
        chunks: (first token, number of tokens) of each prefill chunk.
    """

    step: int
    seconds: float
    num_running: int
    num_decodes: int
    num_prefill_tokens: int
    decode_kv_tokens: int
    prefill_context_tokens: int
    num_copied_tokens: int
    chunks: tuple[tuple[int, int], ...]


def step_log(recording: Recording) -> Iterator[StepEntry]:
    """The steps in order; those that failed are left out.

    Raises:
        OSError: the file cannot be read.
        RecordingError: it is damaged, or names a request that is not there.
    """
    batch = _Batch(recording.header.config.capacity.max_num_seqs)
    for event in recording.events():
        match event:
            case Added():
                batch.num_tokens_of[event.request_id] = event.num_prompt_tokens
            case Cancelled():
                batch.num_tokens_of.pop(event.request_id, None)
            case Step():
                yield from batch.step(event)
            case Repeated():
                yield from batch.repeat(event)


class _Batch:
    """Who holds which slot, and how far each of them is.

    Attributes:
        num_tokens_of: known tokens of each request that did not end; of one in a slot, when it got the slot.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_tokens_of: dict[int, int] = {}
        self._request_in: dict[int, int] = {}
        self._num_tokens = np.zeros(num_slots, np.int64)
        self._num_computed = np.zeros(num_slots, np.int64)
        self._decoding = np.zeros(num_slots, np.bool_)
        self._decode_slots = np.empty(0, np.intp)
        self._step = 0

    def step(self, line: Step) -> list[StepEntry]:
        num_copied = self._give_and_take_slots(line)
        self._decoding[line.decodes] ^= True
        self._decode_slots = np.flatnonzero(self._decoding)
        entry = StepEntry(
            step=line.step,
            seconds=line.micros / 1e6,
            num_running=len(self._request_in),
            num_decodes=len(self._decode_slots),
            num_prefill_tokens=sum(chunk.length for chunk in line.chunks),
            decode_kv_tokens=int(self._num_tokens[self._decode_slots].sum()),
            prefill_context_tokens=sum(_context(chunk) for chunk in line.chunks),
            num_copied_tokens=num_copied,
            chunks=tuple((chunk.start, chunk.length) for chunk in line.chunks),
        )
        self._step = line.step + 1
        if line.ended is None:
            return []
        self._advance(1)
        for chunk in line.chunks:
            self._num_computed[chunk.slot] = chunk.start + chunk.length
            # The last chunk samples the next token.
            self._num_tokens[chunk.slot] += chunk.start + chunk.length == self._num_tokens[chunk.slot]
        for each in line.ended:
            self.num_tokens_of.pop(each.request_id, None)
        return [entry]

    def repeat(self, line: Repeated) -> Iterator[StepEntry]:
        num_running, num_decodes = len(self._request_in), len(self._decode_slots)
        kv_tokens = int(self._num_tokens[self._decode_slots].sum())
        for micros in line.micros:
            yield StepEntry(self._step, micros / 1e6, num_running, num_decodes, 0, kv_tokens, 0, 0, ())
            self._step += 1
            kv_tokens += num_decodes
        self._advance(len(line.micros))

    def _advance(self, num_steps: int) -> None:
        self._num_tokens[self._decode_slots] += num_steps
        self._num_computed[self._decode_slots] += num_steps

    def _give_and_take_slots(self, line: Step) -> int:
        """Returns how many tokens were copied for it."""
        swapped_out = [preempted.slot for preempted in line.preemptions if preempted.swapped_out]
        num_copied = int(self._num_computed[swapped_out].sum())
        for slot in line.releases:
            request_id = self._request_in.pop(slot, None)
            if request_id in self.num_tokens_of:
                self.num_tokens_of[request_id] = int(self._num_tokens[slot])
        for start in line.starts:
            if start.request_id not in self.num_tokens_of:
                raise RecordingError(f"admits request {start.request_id} in step {line.step}, which is not there")
            self._request_in[start.slot] = start.request_id
            self._num_tokens[start.slot] = self.num_tokens_of[start.request_id]
            self._num_computed[start.slot] = start.num_computed_tokens
            num_copied += start.num_computed_tokens if start.swapped_in else 0
        return num_copied


def _context(chunk: Chunk) -> int:
    return chunk.length * chunk.start + chunk.length * (chunk.length + 1) // 2
