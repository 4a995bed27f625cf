"""Priority with aging."""

from __future__ import annotations

PRIORITY_AGING_S = 10.0
"""Default of the seconds of waiting that count as one step of priority."""


def aged(arrived: float, priority: int, aging_s: float) -> float:
    """The place of a request in the queue: smaller goes first.

    Args:
        arrived: seconds, on any clock.
        priority: a smaller number goes first, as if it had arrived that many times `aging_s` earlier.
        aging_s: seconds of waiting that count as one step of priority.

    All that wait age at the same pace, so which of two is ahead never changes, and the number can be fixed at arrival:
    a request of priority p stands where one of priority 0 would that arrived p x `aging_s` seconds later.

    Nothing starves: a request of priority p is overtaken only by requests that arrive less than (p - p_min) x `aging_s`
    seconds after it, p_min being the smallest number in use. Servers bound the numbers, and so the wait.
    """
    return arrived + priority * aging_s
