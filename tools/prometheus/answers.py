"""Runs every query of every panel and lists those without data."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.prometheus.grafana import PanelQuery, Window, chosen, label_values, queries, replace
from tools.prometheus.prometheus import Prometheus, PrometheusError
from tools.testbed.helm import CHART

FOLDER = CHART / "dashboards"
NO_DATA = "no data"

_OR_ZERO = re.compile(r"(?!count\()(.+) or vector\(0\)")
"""Queries that show 0 where there is nothing. A count of what a filter leaves is nothing where all is well."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of a query.

    Attributes:
        expr: as executed, with variables replaced.
        problem: Prometheus' complaint, or that there is no data; empty for a successful query.
    """

    query: PanelQuery
    expr: str
    series: int
    problem: str

    def __str__(self) -> str:
        return f"{self.query}: {self.problem}\n    {self.expr}"


@dataclass(frozen=True, slots=True)
class Answers:
    """Results of one dashboard. `variables` has the values used in the queries."""

    dashboard: str
    variables: Mapping[str, str]
    answers: Sequence[Answer] = field(default_factory=tuple)

    @property
    def problems(self) -> list[Answer]:
        """Queries that show as an empty or broken panel, or a missing line."""
        return [answer for answer in self.answers if answer.problem]


def load(folder: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """The dashboards by file name without its ending."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def variables(prometheus: Prometheus, dashboard: Mapping[str, Any], wanted: Mapping[str, str]) -> dict[str, str]:
    """Value of each variable of a dashboard in queries.

    Args:
        wanted: values by name; a variable without one takes the dashboard's default.

    Raises:
        ValueError: a variable has no value.
        PrometheusError: a variable's query is refused.
    """
    texts: dict[str, str] = {}
    for definition in dashboard["templating"]["list"]:
        if definition["type"] == "datasource":
            continue
        series, label = label_values(definition)
        options = prometheus.label_values(label, replace(series, texts) if series else None)
        texts[definition["name"]] = chosen(definition, options, wanted.get(definition["name"])).text
    return texts


def ask(prometheus: Prometheus, dashboard: Mapping[str, Any], window: Window, wanted: Mapping[str, str]) -> Answers:
    """Execute all queries of a dashboard over `window`. Raises ValueError and PrometheusError as `variables` does."""
    texts = variables(prometheus, dashboard, wanted)
    values = {**window.builtins(), **texts}
    return Answers(
        dashboard["title"],
        texts,
        tuple(
            _answer(prometheus, query, replace(without_zero(query.expr), values), window)
            for query in queries(dashboard)
        ),
    )


def without_zero(expr: str) -> str:
    """Returns `expr` without fallback: a 0 as a substitute for missing metrics would hide that they are missing."""
    found = _OR_ZERO.fullmatch(expr)
    return found[1] if found else expr


def _answer(prometheus: Prometheus, query: PanelQuery, expr: str, window: Window) -> Answer:
    try:
        if query.instant:
            found = prometheus.query(expr, window.end)
        else:
            found = prometheus.query_range(expr, window.start, window.end, window.step_seconds)
    except PrometheusError as error:
        return Answer(query, expr, 0, str(error))
    return Answer(query, expr, len(found), "" if found else NO_DATA)
