"""Drain arithmetic: how long a pod that goes gets before it is killed."""

from __future__ import annotations

import math

from inflight_operator.api.quantities import parse_duration

MARGIN_SECONDS = 20
"""For the engine to notice, close its sockets and exit, on a machine that is busy."""


def grace_period_seconds(propagation_seconds: int, drain_timeout: str) -> int:
    """terminationGracePeriodSeconds = propagation + drain + margin.

    After SIGTERM the engine keeps taking requests for `propagation_seconds`, since routers still send them; then it
    refuses new ones and finishes what it has within `drain_timeout`; then it exits. Kubernetes kills it only when all
    of that and a margin have passed, so a request is cut off only by its own drain timeout.
    """
    return propagation_seconds + math.ceil(parse_duration(drain_timeout)) + MARGIN_SECONDS
