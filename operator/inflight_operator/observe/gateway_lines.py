"""The lines of a gateway pod's state stream."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from typing import Any

from inflight_base.manifest.keys import ServiceKey
from inflight_operator.observe.gateway_view import GatewayDemand, GatewayReport

MAX_LINE = 16 * 2**20
"""Maximum bytes of a line: some 200 for each service and each of its classes."""

MAX_COUNTER = 2**63
"""Bound of a counter. Squares of long prompts pass 2^53 in weeks."""

MAX_ERROR = 200
"""Maximum characters of an error in messages; a pod may have written them."""


class GatewayStreamError(Exception):
    """A pod sent data that is no state stream."""


async def lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yields the lines of a stream.

    Raises:
        GatewayStreamError: one is too long.
    """
    rest = bytearray()
    async for chunk in chunks:
        begin = len(rest)
        rest += chunk
        end = rest.find(b"\n", begin)
        while end >= 0:
            line = bytes(rest[:end])
            del rest[: end + 1]
            if line:
                yield line
            end = rest.find(b"\n")
        if len(rest) > MAX_LINE:
            raise GatewayStreamError(f"a line of more than {MAX_LINE} bytes")


def read_line(line: bytes, now: float, since: float) -> tuple[bool, dict[ServiceKey, GatewayReport]]:
    """Returns True if a line is a full one, and its reports of services.

    Args:
        now: time on the steady clock.
        since: when the stream began.

    Raises:
        GatewayStreamError: it is no line of a state stream.
    """
    try:
        body = json.loads(line)
        reports = {
            ServiceKey(str(one["namespace"]), str(one["name"])): GatewayReport(
                at=now,
                since=since,
                held=_count(one["held"]),
                held_prompt_tokens=_count(one.get("held_prompt_tokens", 0)),
                oldest_held_s=_seconds(one.get("oldest_held_s") or 0.0),
                in_flight=_count(one["in_flight"]),
                idle_s=None if one.get("idle_s") is None else _seconds(one["idle_s"]),
                demand=_demand(one.get("demand")),
            )
            for one in body.get("services") or ()
        }
        return body.get("full") is True, reports
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise GatewayStreamError(f"no state: {type(error).__name__}: {str(error)[:MAX_ERROR]}") from error


def _demand(classes: Any) -> GatewayDemand | None:
    """Returns the sums over all classes; None from a gateway of an earlier release.

    Raises:
        ValueError: a counter is none.
    """
    if classes is None:
        return None
    counters = ([_count(one.get(name, 0), MAX_COUNTER) for name in GatewayDemand._fields] for one in classes.values())
    return GatewayDemand(*map(sum, zip(GatewayDemand(), *counters, strict=True)))


def _count(value: object, below: int = 2**53) -> int:
    """Returns a count that a gateway pod sent.

    Raises:
        ValueError: the value is no count.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < below:
        raise ValueError(f"{value!r} is not a count")
    return value


def _seconds(value: object) -> float:
    """Returns seconds that a gateway pod sent.

    Raises:
        ValueError: the value is no time span.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{value!r} is not a number of seconds")
    return float(value)
