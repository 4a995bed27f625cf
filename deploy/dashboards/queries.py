"""PromQL that several panels need.

Only metrics of operator, engines and gateway are used, none of the chart's recording rules: dashboards work without
them. Two operator pods may be scraped while leadership moves, so a value of a service is a `max` over processes. Each
gateway pod counts its own requests, so a value there is a `sum`.
"""

from __future__ import annotations

import re

SERVICE = ("namespace", "name")
RATE = "$__rate_interval"
RANGE = "$__range"

SERVICES = 'namespace=~"$namespace", name=~"$service"'
"""Selects where several services may be chosen."""

ONE_SERVICE = 'namespace="$namespace", name="$service"'
"""Selects where one service is chosen."""

ONE_SERVICE_BEHIND_GATEWAY = 'namespace="$namespace", service="$service"'
"""Selects one service in the gateway's metrics."""

PODS = f'{ONE_SERVICE}, pod=~"$pod"'
"""Selects chosen pods of one service."""


def metrics(expr: str) -> list[str]:
    """Names of the samples that a query asks for."""
    return re.findall(r"\b(?:inflight_|vllm:)\w+", expr)


def per(labels: tuple[str, ...]) -> str:
    """The words ` by (...)`, or nothing."""
    return f" by ({', '.join(labels)})" if labels else ""


def known(metric: str, selector: str, labels: tuple[str, ...] = SERVICE) -> str:
    """A gauge of the operator."""
    return f"max{per(labels)} (inflight_operator_{metric}{{{selector}}})"


def value(name: str) -> str:
    """A gauge of the operator about the one service."""
    return known(f"service_{name}", ONE_SERVICE, ())


def last_decisions(selector: str) -> str:
    """Milliseconds since 1970 of the last decision about each knob."""
    return (
        f"{known('service_last_decision_timestamp_seconds', selector, ('kind', 'knob', 'from', 'to', 'reason'))} * 1000"
    )


def added(expr: str, labels: tuple[str, ...] = ()) -> str:
    """The sum of what `expr` gives for each service."""
    return f"sum{per(labels)} ({expr})"


def rate(metric: str, selector: str, labels: tuple[str, ...] = (), window: str = RATE) -> str:
    """A counter's growth per second."""
    return f"sum{per(labels)} (rate({metric}{{{selector}}}[{window}]))"


def quantile(share: float, histogram: str, selector: str, labels: tuple[str, ...] = (), window: str = RATE) -> str:
    """A percentile of a histogram; no value (instead of NaN) without observations."""
    return f"(histogram_quantile({share:g}, {rate(f'{histogram}_bucket', selector, ('le', *labels), window)}) >= 0)"


def ratio(part: str, whole: str) -> str:
    """Returns the query of a ratio, which has no value where `whole` is 0."""
    return f"{part} / ({whole} > 0)"


def mean(histogram: str, selector: str, labels: tuple[str, ...] = ()) -> str:
    """The mean of a histogram's observations; no value without any."""
    return ratio(rate(f"{histogram}_sum", selector, labels), rate(f"{histogram}_count", selector, labels))


def in_target(counter: str, selector: str, labels: tuple[str, ...] = SERVICE, window: str = RATE) -> str:
    """The share of `first_tokens` or `outputs` within the target; no value without requests or without targets."""
    name = f"inflight_operator_service_{counter}"
    within, total = (rate(f"{name}{part}_total", selector, labels, window) for part in ("_in_target", ""))
    return ratio(within, total)


def out_of_target_seconds(counter: str, selector: str) -> str:
    """Seconds of the time range in which more than 5% of the last minute's requests missed the target."""
    missed = f"{in_target(counter, selector, SERVICE, '1m')} < bool 0.95"
    return f"sum (sum_over_time(({missed})[{RANGE}:30s])) * 30"


def counted_each(counter: str, selector: str, labels: tuple[str, ...]) -> str:
    """Number of events between two points of a graph: windows do not overlap, so the counts add up."""
    total = f"sum{per(labels)} ({counter}{{{selector}}})"
    before = f"sum{per(labels)} ({counter}{{{selector}}} offset $__interval)"
    return f"({total} unless {before}) or clamp_min({total} - {before}, 0)"


def counted(counter: str, selector: str, labels: tuple[str, ...], window: str) -> str:
    """Number of events in a window.

    `increase` misses the first event of a series that begins with it, so a series that did not exist at the start of
    the window counts in full.
    """
    total = f"sum{per(labels)} ({counter}{{{selector}}})"
    before = f"sum{per(labels)} ({counter}{{{selector}}} offset {window})"
    return f"({total} unless {before}) or sum{per(labels)} (increase({counter}{{{selector}}}[{window}]))"
