"""Panels: every one has a title, a description, a unit and queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import TypeAlias, TypeVar

from grafana_foundation_sdk.builders import bargauge, common, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders.dashboard import FieldColor
from grafana_foundation_sdk.models import common as look
from grafana_foundation_sdk.models import dashboard as model

from deploy.dashboards import style
from deploy.dashboards.queries import quantile

DATASOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")

Panel: TypeAlias = timeseries.Panel | stat.Panel | bargauge.Panel | table.Panel
_Begun = TypeVar("_Begun", timeseries.Panel, stat.Panel, bargauge.Panel)


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel.

    Attributes:
        legend: name of its series, with `{{label}}`.
        color: of all its series; None: those of the palette.
        dashed: a target or a bound: a dashed line without area, outside a stack.
    """

    expr: str
    legend: str
    color: str | None = None
    dashed: bool = False


def percentiles(histogram: str, selector: str, *shares: float, named: str = "") -> list[Query]:
    """Percentiles of a histogram, each in its colour. Args: named: before the name of each."""
    return [
        Query(quantile(share, histogram, selector), f"{named}p{100 * share:.0f}", style.PERCENTILES[share])
        for share in shares or style.PERCENTILES
    ]


_HEADERS = {"mean": "Mean", "min": "Min", "max": "Max", "sum": "Total", "lastNotNull": "Last *"}
"""Columns of a legend, by the calculation."""


def lines(
    title: str,
    description: str,
    unit: str,
    queries: Sequence[Query],
    *,
    stacked: bool = False,
    bars: bool = False,
    top: float | None = None,
    least_top: float | None = None,
    line: tuple[float, str] | None = None,
    colors: Mapping[str, str] | None = None,
    otherwise: str | None = None,
    calcs: Sequence[str] = ("mean", "max", "lastNotNull"),
    decimals: int | None = None,
) -> timeseries.Panel:
    """Values over time, from 0 on.

    Args:
        top: end of the axis.
        least_top: end of the axis while all values are below it.
        line: a dashed line at this value, in this colour.
        colors: of series by their names.
        otherwise: colour of all other series, in shades.
        calcs: columns of the legend; series of a label are in the order of the first one, the most remarkable first.
    """
    panel = (
        _begun(timeseries.Panel(), title, description, unit)
        .min(0)
        .draw_style(look.GraphDrawStyle.BARS if bars else look.GraphDrawStyle.LINE)
        .line_width(0 if stacked else 1 if bars else 2)
        .fill_opacity(70 if bars else 45 if stacked else 8)
        .show_points(look.VisibilityMode.NEVER)
        .tooltip(common.VizTooltipOptions().mode(look.TooltipDisplayMode.MULTI).sort(look.SortOrder.DESCENDING))
    )
    legend = (
        common.VizLegendOptions()
        .display_mode(look.LegendDisplayMode.TABLE)
        .placement(look.LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs(list(calcs))
    )
    if any("{{" in query.legend for query in queries):
        legend.sort_by(_HEADERS[calcs[0]]).sort_desc(calcs[0] != "min")
    panel.legend(legend)
    if stacked:
        panel.stacking(common.StackingConfig().mode(look.StackingMode.NORMAL).group("A"))
    if top is not None:
        panel.max(top)
    if least_top is not None:
        panel.axis_soft_max(least_top)
    if decimals is not None:
        panel.decimals(decimals)
    if line is not None:
        panel.thresholds(style.thresholds(((None, "transparent"), line)))
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(look.GraphThresholdsStyleMode.DASHED))
    for query, letter in zip(queries, ascii_uppercase, strict=False):
        panel.with_target(_target(query, letter).range())
        if properties := _properties(query):
            panel.override_by_query(letter, properties)
    if otherwise is not None:
        panel.color_scheme(FieldColor().mode(model.FieldColorModeId.SHADES).fixed_color(otherwise))
    for name, color in (colors or {}).items():
        panel.override_by_name(name, [field_property("color", style.fixed(color))])
    return panel


def number(
    title: str,
    description: str,
    unit: str,
    queries: Sequence[Query],
    *,
    steps: style.Steps = style.PLAIN,
    decimals: int | None = None,
    names: Mapping[str, str] | None = None,
    named: bool = False,
    labelled: bool = False,
    none: str | None = None,
) -> stat.Panel:
    """The current value, large: an instant query, so that it is not from before the traffic stopped.

    Args:
        names: text instead of a value.
        named: shows the names of series instead of values; colours go by `style.STATES`, any other name is bad.
        labelled: shows the name of the series beside its value.
        none: text without a value.
    """
    text = look.BigValueTextMode.VALUE_AND_NAME if labelled else look.BigValueTextMode.AUTO
    text = look.BigValueTextMode.NAME if named else text
    panel = (
        _begun(stat.Panel(), title, description, unit)
        .thresholds(style.thresholds(((None, style.BAD),) if named else steps))
        .color_mode(look.BigValueColorMode.VALUE)
        .graph_mode(look.BigValueGraphMode.NONE)
        .text_mode(text)
        .justify_mode(look.BigValueJustifyMode.AUTO)
        .orientation(look.VizOrientation.AUTO)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    )
    if decimals is not None:
        panel.decimals(decimals)
    if none is not None:
        panel.no_value(none)
    if names is not None:
        panel.mappings([mapping(names)])
    _show_now(panel, queries)
    if named:
        for state, color in style.STATES.items():
            panel.override_by_name(state, [field_property("color", style.fixed(color))])
    return panel


def bars(
    title: str, description: str, unit: str, queries: Sequence[Query], *, steps: style.Steps = style.PLAIN
) -> bargauge.Panel:
    """The latest values as bars, one below the other."""
    panel = (
        _begun(bargauge.Panel(), title, description, unit)
        .min(0)
        .thresholds(style.thresholds(steps))
        .orientation(look.VizOrientation.HORIZONTAL)
        .display_mode(look.BarGaugeDisplayMode.GRADIENT)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    )
    _show_now(panel, queries)
    return panel


def mapping(names: Mapping[str, str]) -> model.ValueMap:
    """Mappings from values to texts."""
    results = {value: model.ValueMappingResult(text=text) for value, text in names.items()}
    return model.ValueMap(options=results)


def _properties(query: Query) -> list[model.DynamicConfigValue]:
    properties = []
    if query.color is not None:
        properties.append(field_property("color", style.fixed(query.color)))
    if query.dashed:
        properties.append(field_property("custom.lineStyle", {"fill": "dash", "dash": [10, 10]}))
        properties.append(field_property("custom.lineWidth", 2))
        properties.append(field_property("custom.fillOpacity", 0))
        properties.append(field_property("custom.stacking", {"group": "A", "mode": "none"}))
    return properties


def field_property(name: str, value: object) -> model.DynamicConfigValue:
    """One property of an override."""
    return model.DynamicConfigValue(id_val=name, value=value)


def _begun(panel: _Begun, title: str, description: str, unit: str) -> _Begun:
    return panel.title(title).description(description).datasource(DATASOURCE).unit(unit)


def _show_now(panel: stat.Panel | bargauge.Panel, queries: Sequence[Query]) -> None:
    for query, letter in zip(queries, ascii_uppercase, strict=False):
        panel.with_target(_target(query, letter).instant())
        if query.color is not None:
            panel.override_by_query(letter, [field_property("color", style.fixed(query.color))])


def _target(query: Query, letter: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(letter)
