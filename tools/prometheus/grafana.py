"""Grafana's substitution of intervals and variables in queries. Pure.

Intervals follow `rangeUtil.calculateInterval` of @grafana/data and Grafana's Prometheus data source; replacement of
variables follows its `interpolateQueryExpr`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_DATA_POINTS = 1000
"""Points that a panel asks for: about its width in pixels."""
_MAX_SAMPLES = 11000
"""Prometheus refuses a range query with more points of a series."""

_ROUNDED = (
    (10, 1), (15, 10), (35, 20), (75, 50), (150, 100), (350, 200), (750, 500), (1500, 1000), (3500, 2000),
    (7500, 5000), (12500, 10_000), (17500, 15_000), (25_000, 20_000), (45_000, 30_000), (90_000, 60_000),
    (210_000, 120_000), (450_000, 300_000), (750_000, 600_000), (1_050_000, 900_000), (1_500_000, 1_200_000),
    (2_700_000, 1_800_000), (5_400_000, 3_600_000), (9_000_000, 7_200_000), (16_200_000, 10_800_000),
    (32_400_000, 21_600_000), (86_400_000, 43_200_000), (604_800_000, 86_400_000),
)  # fmt: skip
"""Milliseconds: intervals below the first number become the second (`rangeUtil.roundInterval`)."""
_LONGEST_MS = 604_800_000

_VARIABLE = re.compile(r"\$(?P<plain>\w+)|\$\{(?P<braced>\w+)(?::\w+)?\}|\[\[(?P<old>\w+)(?::\w+)?\]\]")
_REGEX_SPECIAL = re.compile(r"[\\^$*+?.()|\[\]{}]")
ALL = "$__all"


def round_interval(milliseconds: float) -> int:
    """The interval rounded to a readable value, in milliseconds."""
    index = bisect_right([limit for limit, _ in _ROUNDED], milliseconds)
    return _ROUNDED[index][1] if index < len(_ROUNDED) else _LONGEST_MS


@dataclass(frozen=True, slots=True)
class Window:
    """A time range and its resolution.

    Attributes:
        start, end: seconds since the epoch.
        scrape_seconds: scrape interval, as configured in the data source.
    """

    start: float
    end: float
    scrape_seconds: float
    points: int = MAX_DATA_POINTS

    @property
    def step_seconds(self) -> float:
        """Seconds between two points of a range query: at least the scrape interval."""
        span = self.end - self.start
        wanted = max(round_interval(span * 1000 / self.points) / 1000, self.scrape_seconds)
        return max(wanted, span / _MAX_SAMPLES)

    @property
    def rate_interval_seconds(self) -> float:
        """`$__rate_interval`: four scrapes at least, so that a rate has points even if one is missing."""
        return max(self.step_seconds + self.scrape_seconds, 4 * self.scrape_seconds)

    def builtins(self) -> dict[str, str]:
        """Grafana's own variables that PromQL uses."""
        span = self.end - self.start
        return {
            "__interval": _duration(self.step_seconds),
            "__interval_ms": f"{self.step_seconds * 1000:.0f}",
            "__rate_interval": _duration(self.rate_interval_seconds),
            "__range": f"{round(span)}s",
            "__range_s": f"{round(span)}",
            "__range_ms": f"{span * 1000:.0f}",
        }


def _duration(seconds: float) -> str:
    return f"{seconds:.0f}s" if seconds == int(seconds) else f"{seconds * 1000:.0f}ms"


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of a dashboard with the values that are chosen.

    Attributes:
        regex: several values, or all, may be chosen: values are written as a regular expression.
        all_values: used unchanged if all are chosen; None lists all values.
    """

    values: tuple[str, ...]
    regex: bool = False
    all_values: str | None = None

    @property
    def text(self) -> str:
        """The value in the query."""
        if self.all_values is not None:
            return self.all_values
        if not self.regex:
            # Inside a quoted string: a backslash and a quotation mark would end it.
            return self.values[0].replace("\\", r"\\").replace('"', r"\"")
        escaped = [_REGEX_SPECIAL.sub(lambda found: "\\\\" + found[0], value) for value in self.values]
        return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"


def replace(text: str, values: Mapping[str, str]) -> str:
    """Returns `text` with `$name`, `${name}` and `[[name]]` replaced; unknown names stay."""

    def value(found: re.Match[str]) -> str:
        return values.get(found["plain"] or found["braced"] or found["old"], found[0])

    return _VARIABLE.sub(value, text)


@dataclass(frozen=True, slots=True)
class PanelQuery:
    """A query of a panel, with the dashboard's variables in it."""

    dashboard: str
    panel: str
    ref_id: str
    expr: str
    instant: bool

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.panel}, query {self.ref_id}"


def panels(dashboard: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields all panels, also in collapsed rows, without rows themselves."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panel.get("panels") or ()
        else:
            yield panel


def queries(dashboard: Mapping[str, Any]) -> list[PanelQuery]:
    """Every query of every panel that is not hidden."""
    return [
        PanelQuery(dashboard["title"], panel["title"], target["refId"], target["expr"], bool(target.get("instant")))
        for panel in panels(dashboard)
        for target in panel.get("targets") or ()
        if not target.get("hide")
    ]


def chosen(definition: Mapping[str, Any], options: Sequence[str], wanted: str | None) -> Variable:
    """Grafana's choice for a variable: `wanted`, else the dashboard's own current value, else the first option.

    Args:
        definition: the variable in the dashboard's JSON.
        options: its possible values, sorted.

    Raises:
        ValueError: no value exists, or `wanted` is not among them.
    """
    name = definition["name"]
    if not options:
        raise ValueError(f"variable {name} has no value: {_query(definition)} finds nothing")
    regex = bool(definition.get("multi") or definition.get("includeAll"))
    if wanted is not None:
        if wanted not in options:
            raise ValueError(f"variable {name} cannot be {wanted}: it has {', '.join(options)}")
        return Variable((wanted,), regex)
    current = (definition.get("current") or {}).get("value")
    if current in (ALL, [ALL]):
        return Variable(tuple(options), regex, definition.get("allValue") or None)
    return Variable((str(current) if current in options else options[0],), regex)


_LABEL_VALUES = re.compile(r"label_values\((?:(?P<series>.+),\s*)?(?P<label>[a-zA-Z_]\w*)\)")


def label_values(definition: Mapping[str, Any]) -> tuple[str | None, str]:
    """Series selector (None: all series) and label of a variable's query `label_values(...)`.

    Raises:
        ValueError: it is another query.
    """
    found = _LABEL_VALUES.fullmatch(_query(definition).strip())
    if not found:
        raise ValueError(f"variable {definition['name']}: {_query(definition)} is no label_values(...)")
    return found["series"], found["label"]


def _query(definition: Mapping[str, Any]) -> str:
    query = definition.get("query")
    return str(query["query"] if isinstance(query, Mapping) else query)
