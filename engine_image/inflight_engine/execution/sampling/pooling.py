"""Hidden states of prompts, for the requests that ask for them: of the last token, in the step that samples the first
one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from inflight_engine.execution.memory.staging import upload
from inflight_engine.output import Pooled
from inflight_engine.scheduling.plan import Slots, StepPlan


class PooledRows(NamedTuple):
    """The sampled rows of a step whose requests ask for hidden states. `rows`: int64 [n]. `slots`: [n]."""

    rows: npt.NDArray[np.int64]
    slots: Slots

    def take(self, hidden: torch.Tensor) -> torch.Tensor:
        """Copy the hidden states of these rows, float32 [n, hidden_size]."""
        return hidden[upload(self.rows, hidden.device)].float()

    def reports(self, vectors: npt.NDArray[Any]) -> list[Pooled]:
        """Return the reports. `vectors`: what `take` returned, on the host."""
        return [Pooled(slot, vector.tobytes()) for slot, vector in zip(self.slots.tolist(), vectors, strict=True)]


class PooledSlots:
    """The slots that ask for hidden states."""

    def __init__(self) -> None:
        self._slots: set[int] = set()

    def apply(self, plan: StepPlan) -> None:
        """Forget the slots that the plan releases, and learn those that it starts."""
        if self._slots:
            self._slots.difference_update(plan.releases, (start.slot for start in plan.starts))
        self._slots.update(start.slot for start in plan.starts if start.sampling.pooled)

    def rows(self, slots: Slots) -> PooledRows | None:
        """Return the rows that ask; `slots`: [N], of the sampled rows. None: none does."""
        if not self._slots:
            return None
        rows = np.array([row for row, slot in enumerate(slots.tolist()) if slot in self._slots], np.int64)
        return PooledRows(rows, slots[rows]) if len(rows) else None
