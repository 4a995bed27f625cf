"""Kinds of panels, as the JSON of Grafana."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from string import ascii_uppercase
from typing import Any, Literal, ParamSpec, TypeVar

from deploy.dashboards import style
from deploy.dashboards.queries import metrics, quantile

T = TypeVar("T")
P = ParamSpec("P")
Json = dict[str, Any]

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

_LATEST: Json = {"calcs": ["lastNotNull"]}
_HEADERS = {"mean": "Mean", "min": "Min", "sum": "Total", "lastNotNull": "Last *"}
"""Columns of a legend, by the calculation."""
_COLUMN_WIDTH = 70
"""Pixels that a column has at least: more, and a table of all numbers of a service is wider than a screen."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query of a panel.

    Attributes:
        legend: name of its series, with `{{label}}`.
        color: color of all its series; None: colors of the palette.
        dashed: a target or a bound: a dashed line without area, outside a stack.
        about: what the panel's description says about its series.
    """

    legend: str
    expr: str
    color: str | None = None
    dashed: bool = False
    about: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel without its title and place.

    Attributes:
        defaults: of all fields; `overrides` are for some of them.
        remade: makes it with those of its queries that ask for metrics that exist; None if none but bounds is left.
    """

    kind: str
    description: str
    targets: Sequence[Json]
    options: Json
    defaults: Json
    overrides: Sequence[Json]
    transformations: Sequence[Json] | None = None
    remade: Callable[[Callable[[str], bool]], Panel | None] | None = None

    def with_metrics(self, exist: Callable[[str], bool]) -> Panel | None:
        """Returns the panel with the queries whose metrics all exist; None if none but bounds is left."""
        assert self.remade is not None
        return self.remade(exist)

    def json(self, number: int, title: str, place: Json) -> Json:
        """The panel on a dashboard."""
        return present(
            type=self.kind,
            id=number,
            targets=self.targets,
            title=title,
            description=self.description,
            transparent=False,
            datasource=DATASOURCE,
            gridPos=place,
            repeatDirection="h",
            transformations=self.transformations,
            options=self.options,
            fieldConfig={"defaults": self.defaults, "overrides": self.overrides},
        )


def present(**entries: Any) -> Json:
    """The entries that have a value."""
    return {name: value for name, value in entries.items() if value is not None}


def _kept(make: Callable[P, Panel]) -> Callable[P, Panel]:
    """Panels that can be made again with fewer queries."""

    @wraps(make)
    def made(*arguments: P.args, **options: P.kwargs) -> Panel:
        def remade(exist: Callable[[str], bool]) -> Panel | None:
            def has(one: object) -> bool:
                return not isinstance(one, Query | Column) or all(map(exist, metrics(one.expr)))

            left = [one for one in arguments if has(one)]
            measured = any(isinstance(one, Column) or (isinstance(one, Query) and not one.dashed) for one in left)
            return made(*left, **options) if measured else None  # type: ignore[arg-type]

        return replace(make(*arguments, **options), remade=remade)

    return made


def percentiles(histogram: str, selector: str, *shares: float, named: str = "") -> list[Query]:
    """Percentiles of a histogram, each in its colour. Args: named: before the name of each."""
    return [
        Query(f"{named}p{100 * share:.0f}", quantile(share, histogram, selector), style.PERCENTILES[share])
        for share in shares or style.PERCENTILES
    ]


@_kept
def lines(
    unit: str,
    description: str,
    *queries: Query,
    stacked: bool = False,
    bars: bool = False,
    top: float | None = None,
    least_top: float | None = None,
    line: float | None = None,
    colors: Mapping[str, str] | None = None,
    otherwise: str | None = None,
    calcs: Sequence[str] = ("mean", "max", "lastNotNull"),
    decimals: int | None = None,
) -> Panel:
    """Values over time, from 0 on.

    Args:
        bars: of a stack.
        top: end of the axis.
        least_top: end of the axis while all values are below it.
        line: a dashed line at this value.
        colors: of series by their names.
        otherwise: colour of all other series, in shades.
        calcs: columns of the legend; series of a label are in the order of the first one, the most remarkable first.
    """
    several = any("{{" in query.legend for query in queries)
    legend = present(
        displayMode="table",
        placement="bottom",
        showLegend=True,
        calcs=calcs,
        sortBy=_HEADERS[calcs[0]] if several else None,
        sortDesc=calcs[0] != "min" if several else None,
    )
    custom = present(
        drawStyle="bars" if bars else "line",
        thresholdsStyle=None if line is None else {"mode": "dashed"},
        lineWidth=0 if stacked else 2,
        fillOpacity=70 if bars else 45 if stacked else 8,
        showPoints="never",
        axisSoftMax=least_top,
        stacking={"mode": "normal", "group": "A"} if stacked else None,
    )
    defaults = present(
        unit=unit,
        decimals=decimals,
        min=0,
        max=top,
        thresholds=None if line is None else _thresholds(((None, "transparent"), (line, style.TARGET))),
        color=None if otherwise is None else {"mode": "shades", "fixedColor": otherwise},
        custom=custom,
    )
    return Panel(
        "timeseries",
        " ".join(filter(None, (description, *(query.about for query in queries)))),
        [_target(query.expr, letter, legendFormat=query.legend) for letter, query in _lettered(queries)],
        {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}},
        defaults,
        [*_of_queries(queries), *_colored(colors or {})],
    )


@_kept
def number(
    unit: str,
    description: str,
    query: Query,
    *,
    steps: style.Steps = style.PLAIN,
    decimals: int | None = None,
    names: Mapping[str, str] | None = None,
    shows: Literal["auto", "name", "value_and_name"] = "auto",
    none: str | None = None,
) -> Panel:
    """The current value, large: an instant query, so that it is not from before the traffic stopped.

    Args:
        names: text instead of a value.
        shows: `name`, of the series: colours go by `style.STATES`, any other name is bad.
        none: text without a value.
    """
    named = shows == "name"
    defaults = present(
        unit=unit,
        decimals=decimals,
        mappings=names and [{"type": "value", "options": {value: {"text": text} for value, text in names.items()}}],
        thresholds=_thresholds(((None, style.BAD),) if named else steps),
        noValue=none,
    )
    options = {
        "graphMode": "none",
        "colorMode": "value",
        "justifyMode": "auto",
        "textMode": shows,
        "wideLayout": True,
        "showPercentChange": False,
        "reduceOptions": _LATEST,
        "percentChangeColorMode": "standard",
        "orientation": "auto",
    }
    target = _target(query.expr, "A", instant=True, legendFormat=query.legend)
    return Panel("stat", description, [target], options, defaults, _colored(style.STATES if named else {}))


@_kept
def bars(unit: str, description: str, *queries: Query) -> Panel:
    """The latest values as bars, one below the other."""
    options = {
        "displayMode": "gradient",
        "valueMode": "color",
        "namePlacement": "auto",
        "showUnfilled": True,
        "sizing": "auto",
        "minVizWidth": 8,
        "minVizHeight": 16,
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False, "calcs": []},
        "reduceOptions": _LATEST,
        "maxVizHeight": 300,
        "orientation": "horizontal",
    }
    targets = [
        _target(query.expr, letter, instant=True, legendFormat=query.legend) for letter, query in _lettered(queries)
    ]
    defaults = {"unit": unit, "min": 0, "thresholds": _thresholds(style.PLAIN)}
    return Panel("bargauge", description, targets, options, defaults, _of_queries(queries))


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: the value of an instant query, joined to the other columns by their common labels.

    Attributes:
        steps: colours of the text.
    """

    header: str
    unit: str
    expr: str
    decimals: int | None = None
    steps: style.Steps = style.PLAIN


@_kept
def table(
    description: str,
    labels: Mapping[str, str],
    *columns: Column,
    sort: tuple[str, bool],
    links: Mapping[str, tuple[str, str]] | None = None,
    by_text: Mapping[str, Mapping[str, str]] | None = None,
    widths: Mapping[str, int] | None = None,
    hidden: Sequence[str] = (),
) -> Panel:
    """A row for each set of labels, with current values.

    Args:
        labels: names of labels, in the order of their columns, and headers.
        sort: header of a column, and whether from the largest value.
        links: title and address, by the header of the column that carries them.
        by_text: colours of texts, by the header of their column; any other text there is bad.
        widths: of columns in pixels, by their headers; the others share the rest.
        hidden: headers of columns that only links use.
    """
    overrides = [_override("byName", column.header, _cells(column)) for column in columns]
    for header, (title, address) in (links or {}).items():
        overrides.append(_override("byName", header, {"links": [{"title": title, "url": address}]}))
    for header, texts in (by_text or {}).items():
        mappings = [
            {"type": "value", "options": {text: {"color": color} for text, color in texts.items()}},
            {"type": "regex", "options": {"pattern": ".+", "result": {"color": style.BAD}}},
        ]
        overrides.append(_override("byName", header, {"mappings": mappings, **_COLORED_TEXT}))
    for header, width in (widths or {}).items():
        overrides.append(_override("byName", header, {"custom.width": width}))
    overrides += [_override("byName", header, {"custom.hidden": True}) for header in hidden]
    several = len(columns) > 1
    headers = {f"Value #{letter}" if several else "Value": column.header for letter, column in _lettered(columns)}
    organize = {
        "excludeByName": {"Time": True},
        "indexByName": {name: index for index, name in enumerate((*labels, *headers))},
        "renameByName": {**labels, **headers},
    }
    return Panel(
        "table",
        description,
        [_target(column.expr, letter, instant=True, format="table") for letter, column in _lettered(columns)],
        {
            "frameIndex": 0,
            "showHeader": True,
            "showTypeIcons": False,
            "sortBy": [{"displayName": sort[0], "desc": sort[1]}],
            "footer": {"show": False, "reducer": [], "countRows": False},
            "cellHeight": "sm",
        },
        {"custom": {"align": "auto", "inspect": False, "minWidth": _COLUMN_WIDTH, "filterable": False}},
        overrides,
        [*([{"id": "merge", "options": {}}] if several else []), {"id": "organize", "options": organize}],
    )


_COLORED_TEXT = {"custom.cellOptions": {"type": "color-text"}}


def _cells(column: Column) -> Json:
    properties = present(unit=column.unit, decimals=column.decimals)
    if column.steps is not style.PLAIN:
        properties |= {"thresholds": _thresholds(column.steps), **_COLORED_TEXT}
    return properties


def _lettered(queries: Sequence[T]) -> Iterator[tuple[str, T]]:
    """Pairs each query with its name: A, B, ..."""
    return zip(ascii_uppercase, queries, strict=False)


def _target(expr: str, letter: str, *, instant: bool = False, **more: str) -> Json:
    return {"expr": expr, "refId": letter, "instant": instant, "range": not instant, **more}


def _thresholds(steps: style.Steps) -> Json:
    return {"mode": "absolute", "steps": [{"value": value, "color": color} for value, color in steps]}


def _override(by: str, which: str, properties: Json) -> Json:
    listed = [{"id": name, "value": value} for name, value in properties.items()]
    return {"matcher": {"id": by, "options": which}, "properties": listed}


def _colored(names: Mapping[str, str]) -> list[Json]:
    return [_override("byName", name, {"color": _fixed(color)}) for name, color in names.items()]


def _of_queries(queries: Sequence[Query]) -> list[Json]:
    dashes = {
        "custom.lineStyle": {"fill": "dash", "dash": [10, 10]},
        "custom.lineWidth": 2,
        "custom.fillOpacity": 0,
        "custom.stacking": {"group": "A", "mode": "none"},
    }
    return [
        _override("byFrameRefID", letter, properties)
        for letter, query in _lettered(queries)
        if (properties := present(color=_fixed(query.color)) | (dashes if query.dashed else {}))
    ]


def _fixed(color: str | None) -> Json | None:
    return {"mode": "fixed", "fixedColor": color} if color else None
