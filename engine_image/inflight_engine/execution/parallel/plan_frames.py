"""Step plans on their way from one process to others of this machine."""

from __future__ import annotations

import pickle
from dataclasses import replace

import msgspec
import numpy as np

from inflight_engine.request import SamplingParams
from inflight_engine.scheduling.plan import Slots, SlotStart, StepPlan

_SAME_SLOTS: Slots = np.empty(0, np.intp)


class PlanEncoder:
    """Plans as bytes, without what only rank 0 computes. Their slots are sent when they change; while they do not, all
    plans share one array, before and after."""

    def __init__(self) -> None:
        self._slots: Slots | None = None

    def encode(self, plan: StepPlan) -> bytes:
        if any(_differs(start.sampling) for start in plan.all_starts):
            starts, extensions = (tuple(map(_for_others, each)) for each in (plan.starts, plan.extensions))
            plan = msgspec.structs.replace(plan, starts=starts, extensions=extensions)
        if plan.decode_slots is self._slots:
            plan = msgspec.structs.replace(plan, decode_slots=_SAME_SLOTS)
            return b"=" + pickle.dumps(plan, pickle.HIGHEST_PROTOCOL)
        self._slots = plan.decode_slots
        return b"+" + pickle.dumps(plan, pickle.HIGHEST_PROTOCOL)


def _for_others(start: SlotStart) -> SlotStart:
    free = replace(start.sampling, bad_words=(), allowed_tokens=b"", logprobs=None, grammar=None, thinking=None)
    return msgspec.structs.replace(start, sampling=free)


def _differs(sampling: SamplingParams) -> bool:
    return sampling.is_masked or sampling.logprobs is not None


class PlanDecoder:
    """The reverse of `PlanEncoder`."""

    def __init__(self) -> None:
        self._slots: Slots = _SAME_SLOTS

    def decode(self, frame: bytes) -> StepPlan:
        plan: StepPlan = pickle.loads(memoryview(frame)[1:])
        if frame[:1] == b"=":
            return msgspec.structs.replace(plan, decode_slots=self._slots)
        self._slots = plan.decode_slots
        return plan
