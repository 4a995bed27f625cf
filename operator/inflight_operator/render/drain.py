"""Graceful shutdown: the termination grace period of a pod."""

from __future__ import annotations

import math

from inflight_base.manifest.units import parse_duration

PROPAGATION_SECONDS = 5
"""Time for routers to learn that a pod is terminating; it keeps serving for that time."""

MARGIN_SECONDS = 20
"""For the engine to notice, close its sockets and exit, on a machine that is busy."""


def grace_period_seconds(drain_timeout: str) -> int:
    """terminationGracePeriodSeconds = propagation + drain + margin.

    After SIGTERM the engine keeps taking requests for `PROPAGATION_SECONDS`, since routers still send them; then it
    rejects new ones and finishes running ones within `drain_timeout`; then it exits. Kubernetes kills it only after all
    of that and a margin, so only the drain timeout ends requests.
    """
    return PROPAGATION_SECONDS + math.ceil(parse_duration(drain_timeout)) + MARGIN_SECONDS
