"""Selection of the request to preempt when KV blocks run out: a new rule is a function here and a line in `VICTIMS`.

The scheduler never offers the oldest running request, whatever its class and priority. So every request ends that is
admitted: once all older ones have ended it is the oldest, and nothing takes its blocks any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

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
    """The one that came last has waited and computed the least, as a rule."""
    return int(np.argmax(order))


def longest_first(order: Ints, num_tokens: Ints, num_preemptions: Ints) -> int:
    """The one with the most tokens frees the most blocks; of equals the last arrived."""
    return _last_arrived_of(np.flatnonzero(num_tokens == num_tokens.max()), order)


def most_preempted_last(order: Ints, num_tokens: Ints, num_preemptions: Ints) -> int:
    """The one that was preempted least often, so that no request is hit repeatedly; of equals the last arrived."""
    return _last_arrived_of(np.flatnonzero(num_preemptions == num_preemptions.min()), order)


def _last_arrived_of(candidates: npt.NDArray[np.intp], order: Ints) -> int:
    return int(candidates[np.argmax(order[candidates])])


VICTIMS: dict[str, Victim] = {
    "last_arrived": last_arrived,
    "longest_first": longest_first,
    "most_preempted_last": most_preempted_last,
}
