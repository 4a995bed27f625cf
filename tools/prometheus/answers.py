"""Runs every query of every panel of the chart's dashboards, as Grafana does, and lists those without data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.prometheus.prometheus import Prometheus, PrometheusError
from tools.testbed.helm import CHART

FOLDER = CHART / "dashboards"
NO_DATA = "no data"
MAX_POINTS = 1000
"""Points that a panel asks for: about its width in pixels."""

_OR_ZERO = re.compile(r"(?!count\()(.+) or vector\(0\)")
"""Queries that show 0 where there is nothing. A count of what a filter leaves is nothing where all is well."""
_VARIABLE = re.compile(r"\$(\w+)")
_LABEL_VALUES = re.compile(r"label_values\((?P<series>.+), (?P<label>\w+)\)")


class NoChoiceError(ValueError):
    """A variable of a dashboard cannot be chosen."""


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

    @property
    def step_seconds(self) -> float:
        """Seconds between two points of a range query: at least the scrape interval."""
        return max(self.scrape_seconds, (self.end - self.start) / MAX_POINTS)

    def variables(self) -> dict[str, str]:
        """Grafana's own variables; `$__rate_interval` is that of its Prometheus data source: four scrapes at least."""
        rate = max(self.step_seconds + self.scrape_seconds, 4 * self.scrape_seconds)
        seconds = {"__interval": self.step_seconds, "__rate_interval": rate, "__range": self.end - self.start}
        return {name: f"{1000 * each:.0f}ms" for name, each in seconds.items()}


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of a query.

    Attributes:
        where: dashboard, panel, and the query's letter.
        query: as it is in the panel.
        expr: as executed, with variables replaced.
        problem: Prometheus' complaint, or that there is no data; empty for a successful query.
    """

    where: str
    query: str
    expr: str
    problem: str

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}\n    {self.expr}"


def load(folder: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """The dashboards by file name without its ending."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def ask(
    prometheus: Prometheus, dashboard: Mapping[str, Any], window: Window, wanted: Mapping[str, str]
) -> list[Answer]:
    """Execute all queries of a dashboard over `window`.

    Args:
        wanted: values of the dashboard's variables, by name. Of another variable, all values are chosen where that is
            possible, else the first one.

    Raises:
        NoChoiceError: a variable has no value, or not the wanted one: there are no such services.
        PrometheusError: a variable's query is refused.
    """
    values = window.variables()
    for definition in dashboard["templating"]["list"]:
        if definition["type"] == "query":
            values[definition["name"]] = _value(prometheus, definition, values, wanted.get(definition["name"]))
    return [_answer(prometheus, *query, values, window) for query in _queries(dashboard)]


def _value(prometheus: Prometheus, definition: Mapping[str, Any], values: Mapping[str, str], wanted: str | None) -> str:
    name, query = definition["name"], replaced(definition["query"], values)
    found = _LABEL_VALUES.fullmatch(query)
    if not found:
        raise ValueError(f"variable {name}: {query} is no label_values(SERIES, LABEL)")
    options = prometheus.label_values(found["label"], found["series"])
    if not options:
        raise NoChoiceError(f"variable {name} has no value: {query} finds nothing")
    if wanted is not None and wanted not in options:
        raise NoChoiceError(f"variable {name} cannot be {wanted}: it has {', '.join(options)}")
    return str(wanted or definition.get("allValue") or options[0])


def replaced(text: str, values: Mapping[str, str]) -> str:
    """Returns `text` with each `$name` of `values` replaced."""
    return _VARIABLE.sub(lambda found: values.get(found[1], found[0]), text)


def without_zero(expr: str) -> str:
    """Returns `expr` without fallback: a 0 as a substitute for missing metrics would hide that they are missing."""
    found = _OR_ZERO.fullmatch(expr)
    return found[1] if found else expr


def _queries(dashboard: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Yields place, expression and whether it is an instant query, of each query of each panel."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets") or ():
            where = f"{dashboard['title']}: {panel['title']}, query {target['refId']}"
            yield where, target["expr"], bool(target.get("instant"))


def _answer(
    prometheus: Prometheus, where: str, query: str, instant: bool, values: Mapping[str, str], window: Window
) -> Answer:
    expr = replaced(without_zero(query), values)
    try:
        if instant:
            found = prometheus.query(expr, window.end)
        else:
            found = prometheus.query_range(expr, window.start, window.end, window.step_seconds)
    except PrometheusError as error:
        return Answer(where, query, expr, str(error))
    return Answer(where, query, expr, "" if found else NO_DATA)
