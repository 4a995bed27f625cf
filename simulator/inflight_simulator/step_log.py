"""Work and duration of each step of a recorded run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from inflight_cost.model import StepWork, attended_tokens
from inflight_engine.cost_fit.least_squares import Floats
from inflight_engine.recording.lines import Repeated, Step
from inflight_engine.recording.reader import Recording, RecordingError
from inflight_simulator.arrivals import blocks_of
from inflight_simulator.errors import InputError

_MICRO = 1e-6


def read_steps(path: Path) -> tuple[Floats, Floats]:
    """
    Returns:
        [steps, numbers of `StepWork`] and the seconds of each step; failed steps are left out.

    Raises:
        InputError: the file cannot be read, is no recording, or has no steps.
    """
    try:
        recording = Recording(path)
        config = recording.header.config
        log = _StepLog(config.capacity.max_num_seqs, config.block_size)
        for event in recording.events():
            if isinstance(event, Step):
                log.step(event)
            elif isinstance(event, Repeated):
                log.repeated(event)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except RecordingError as error:
        raise InputError(f"{path} {error}") from error
    if not log.works:
        raise InputError(f"{path} has no steps in it")
    return np.array(log.works, np.float64), np.array(log.seconds)


class _StepLog:
    """Follows the slots of a run.

    Attributes:
        context: intp [max_num_seqs]: tokens that a decode of the slot attends to.
        decoding: bool [max_num_seqs]: slots that decoded in the previous step.
    """

    def __init__(self, max_num_seqs: int, block_size: int) -> None:
        self.works: list[StepWork] = []
        self.seconds: list[float] = []
        self._context = np.zeros(max_num_seqs, np.intp)
        self._decoding = np.zeros(max_num_seqs, np.bool_)
        self._block_size = block_size

    def step(self, step: Step) -> None:
        # Before other changes: a preempted slot may be reused in the same step.
        copied_out = [int(self._context[each.slot]) - 1 for each in step.preemptions if each.swapped_out]
        copied_in = [each.num_computed_tokens for each in step.starts if each.swapped_in]
        copied = sum(blocks_of(tokens, self._block_size) for tokens in copied_out + copied_in) * self._block_size
        for start in step.starts:
            self._context[start.slot] = start.num_computed_tokens + 1
        self._decoding[step.decodes] ^= True
        prefill = prefill_context = 0
        for chunk in step.chunks:
            prefill += chunk.length
            prefill_context += attended_tokens(chunk.start, chunk.length)
        if step.ended is None:
            return
        decodes = int(self._decoding.sum())
        self.works.append(StepWork(decodes, prefill, self._read(), prefill_context, copied))
        self.seconds.append(step.micros * _MICRO)
        self._context[self._decoding] += 1
        for chunk in step.chunks:
            self._context[chunk.slot] = chunk.start + chunk.length + 1

    def repeated(self, steps: Repeated) -> None:
        decodes, read = int(self._decoding.sum()), self._read()
        for index, micros in enumerate(steps.micros):
            self.works.append(StepWork(decodes, 0, read + index * decodes, 0, 0))
            self.seconds.append(micros * _MICRO)
        self._context[self._decoding] += len(steps.micros)

    def _read(self) -> int:
        return int(self._context[self._decoding].sum())
