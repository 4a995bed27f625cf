"""Preemption: which request gives way when KV blocks run out.

A new rule is a function here and a line in `VICTIMS`. The oldest running request is never offered to it, whatever its
class and priority. So every request ends that is admitted: once all older ones have ended it is the oldest, and nothing
takes its blocks any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from inflight_engine.request import Request, RequestState
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.plan import Preemption
from inflight_engine.scheduling.queues import WaitingQueues
from inflight_engine.scheduling.running import Running

Ints: TypeAlias = npt.NDArray[np.integer[Any]]

Victim: TypeAlias = Callable[[Ints, Ints, Ints], int]
"""(order, num_tokens, num_preemptions) -> index of the victim. Integer arrays of equal length, one element for each
candidate, at least one: place in the order of arrival, tokens known, and how often it was preempted before."""


def lowest(standings: Sequence[tuple[float, int, int]]) -> npt.NDArray[np.intp]:
    """Indices of the candidates of the largest standing: the preemption rule selects one of them.

    Args:
        standings: `WaitingQueues.standing` and the KV blocks of the request's tenant.
    """
    worst = max(standings)
    return np.array([index for index, each in enumerate(standings) if each == worst], np.intp)


def last_arrived(order: Ints, num_tokens: Ints, num_preemptions: Ints) -> int:
    """Choose the one that came last: as a rule it has waited and computed the least."""
    return int(np.argmax(order))


def longest_first(order: Ints, num_tokens: Ints, num_preemptions: Ints) -> int:
    """Choose the one with the most tokens, which frees the most blocks; of equals the last arrived."""
    return _last_arrived_of(np.flatnonzero(num_tokens == num_tokens.max()), order)


def most_preempted_last(order: Ints, num_tokens: Ints, num_preemptions: Ints) -> int:
    """Choose the one that was preempted least often, so that none is hit repeatedly; of equals the last arrived."""
    return _last_arrived_of(np.flatnonzero(num_preemptions == num_preemptions.min()), order)


def _last_arrived_of(candidates: npt.NDArray[np.intp], order: Ints) -> int:
    return int(candidates[np.argmax(order[candidates])])


VICTIMS: dict[str, Victim] = {
    "last_arrived": last_arrived,
    "longest_first": longest_first,
    "most_preempted_last": most_preempted_last,
}


class Preemptor:
    """Takes slots and blocks from running requests, and puts these back into the queues.

    Attributes:
        rule: chooses among the candidates.
        preempted: the preemptions of the step that is planned.
        num_preemptions: since start.
    """

    def __init__(self, config: SchedulerConfig, queues: WaitingQueues, running: Running) -> None:
        self.rule = VICTIMS[config.preemption_victim]
        self.preempted: list[Preemption] = []
        self.num_preemptions = 0
        self._queues = queues
        self._running = running

    def preempt(self) -> None:
        """Take the victim's slot and blocks away; its tokens are kept. Its full blocks can be found as those of a
        request that ended."""
        request = self._victim()
        self.preempted.append(Preemption(request.slot, request.request_id))
        self._running.leave(request)
        self.put_back(request)

    def put_back(self, request: Request) -> None:
        """Queue a request that has lost its slot."""
        request.state = RequestState.PREEMPTED
        request.num_preemptions += 1
        self.num_preemptions += 1
        self._queues.push(request, self._running.decodes.clock)

    def _victim(self) -> Request:
        """Choose, of the lowest standing, and of these of the tenant that holds the most blocks, the request that the
        rule says; never the oldest, so that something always runs to its end."""
        running, queues, table = self._running, self._queues, self._running.table
        candidates = table.taken()[1:]
        if queues.ranks_running or len(running.tenants) > 1:
            held = running.blocks_by_tenant()
            requests = [table.request(slot) for slot in candidates.tolist()]
            candidates = candidates[
                lowest([(*queues.standing(each), held[each.scheduling.tenant]) for each in requests])
            ]
        index = self.rule(table.order[candidates], table.num_tokens[candidates], table.num_preemptions[candidates])
        return table.request(int(candidates[index]))
