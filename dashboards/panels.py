"""Panels: every one has a title, a description, a unit and queries. Types are those that `dashboards/draw` can draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import TypeAlias

from grafana_foundation_sdk.builders import bargauge, common, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders.dashboard import FieldColor
from grafana_foundation_sdk.models import common as look
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dashboards import style

DATASOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")

Panel: TypeAlias = timeseries.Panel | stat.Panel | bargauge.Panel | table.Panel


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


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: the value of an instant query, joined to the other columns by their common labels.

    Attributes:
        steps: colours of the text.
        names: text instead of a value.
    """

    header: str
    expr: str
    unit: str
    decimals: int | None = None
    steps: style.Steps = style.PLAIN
    names: Mapping[str, str] | None = None


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
    line: tuple[float, str] | None = None,
    colors: Mapping[str, str] | None = None,
    otherwise: str | None = None,
    calcs: Sequence[str] = ("mean", "max", "lastNotNull"),
    decimals: int | None = None,
) -> timeseries.Panel:
    """Values over time, from 0 on.

    Args:
        top: end of the axis.
        line: a dashed line at this value, in this colour.
        colors: of series by their names.
        otherwise: colour of all other series, in shades.
        calcs: columns of the legend; series of a label are in the order of the first one, the most remarkable first.
    """
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
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
    if decimals is not None:
        panel.decimals(decimals)
    if line is not None:
        panel.thresholds(style.thresholds(((None, "transparent"), line)))
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(look.GraphThresholdsStyleMode.DASHED))
    for query, letter in zip(queries, ascii_uppercase, strict=False):
        panel.with_target(_range(query, letter))
        if properties := _properties(query):
            panel.override_by_query(letter, properties)
    if otherwise is not None:
        panel.color_scheme(FieldColor().mode(model.FieldColorModeId.SHADES).fixed_color(otherwise))
    for name, color in (colors or {}).items():
        panel.override_by_name(name, [_property("color", style.fixed(color))])
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
    """The value now, large: asked at one time only, so that it is not one from before the traffic stopped.

    Args:
        names: text instead of a value.
        named: shows the names of series instead of values; colours go by `style.STATES`, any other name is bad.
        labelled: shows the name of the series beside its value.
        none: text where there is no value.
    """
    text = look.BigValueTextMode.VALUE_AND_NAME if labelled else look.BigValueTextMode.AUTO
    text = look.BigValueTextMode.NAME if named else text
    panel = (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
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
        panel.mappings([_mapping(names)])
    for query, letter in zip(queries, ascii_uppercase, strict=False):
        panel.with_target(_instant(query, letter))
        if query.color is not None:
            panel.override_by_query(letter, [_property("color", style.fixed(query.color))])
    if named:
        for state, color in style.STATES.items():
            panel.override_by_name(state, [_property("color", style.fixed(color))])
    return panel


def bars(
    title: str, description: str, unit: str, queries: Sequence[Query], *, steps: style.Steps = style.PLAIN
) -> bargauge.Panel:
    """The latest values as bars, one below the other."""
    panel = (
        bargauge.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .min(0)
        .thresholds(style.thresholds(steps))
        .orientation(look.VizOrientation.HORIZONTAL)
        .display_mode(look.BarGaugeDisplayMode.GRADIENT)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    )
    for query, letter in zip(queries, ascii_uppercase, strict=False):
        panel.with_target(_instant(query, letter))
        if query.color is not None:
            panel.override_by_query(letter, [_property("color", style.fixed(query.color))])
    return panel


_COLUMN_WIDTH = 70
"""Pixels that a column has at least: more, and a table of all numbers of a service is wider than a screen."""


def rows(
    title: str,
    description: str,
    labels: Mapping[str, str],
    columns: Sequence[Column],
    *,
    sort: tuple[str, bool],
    links: Mapping[str, tuple[str, str]] | None = None,
    colors: Mapping[str, Mapping[str, str]] | None = None,
    widths: Mapping[str, int] | None = None,
) -> table.Panel:
    """A row for each set of labels, with what they are now.

    Args:
        labels: names of labels, in the order of their columns, and headers.
        sort: header of a column, and whether from the largest value.
        links: title and address, by the header of the column that carries them.
        colors: of texts, by the header of their column; any other text there is bad.
        widths: of columns in pixels, by their headers; the others share what is left.
    """
    panel = (
        table.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .filterable(False)
        .min_width(_COLUMN_WIDTH)
        .sort_by([common.TableSortByFieldState().display_name(sort[0]).desc(sort[1])])
    )
    values = {}
    for column, letter in zip(columns, ascii_uppercase, strict=False):
        name = f"Value #{letter}" if len(columns) > 1 else "Value"
        values[name] = column.header
        query = prometheus.Dataquery().expr(column.expr).ref_id(letter).instant().format(PromQueryFormat.TABLE)
        panel.with_target(query)
        panel.override_by_name(column.header, _cells(column))
    for header, (text, address) in (links or {}).items():
        panel.override_by_name(header, [_property("links", [{"title": text, "url": address}])])
    for header, texts in (colors or {}).items():
        panel.override_by_name(
            header,
            [
                _property("mappings", [_colored(texts), _OTHERWISE_BAD]),
                _property("custom.cellOptions", {"type": "color-text"}),
            ],
        )
    for header, width in (widths or {}).items():
        panel.override_by_name(header, [_property("custom.width", width)])
    order = [*labels, *values]
    organize = {
        "excludeByName": {"Time": True},
        "indexByName": {name: index for index, name in enumerate(order)},
        "renameByName": {**labels, **values},
    }
    if len(columns) > 1:
        panel.with_transformation(model.DataTransformerConfig(id_val="merge", options={}))
    return panel.with_transformation(model.DataTransformerConfig(id_val="organize", options=organize))


def _cells(column: Column) -> list[model.DynamicConfigValue]:
    properties = [_property("unit", column.unit)]
    if column.decimals is not None:
        properties.append(_property("decimals", column.decimals))
    if column.names is not None:
        properties.append(_property("mappings", [_mapping(column.names)]))
    if column.steps is not style.PLAIN:
        properties.append(_property("thresholds", style.thresholds(column.steps).build()))
        properties.append(_property("custom.cellOptions", {"type": "color-text"}))
    return properties


def _mapping(names: Mapping[str, str]) -> model.ValueMap:
    results = {value: model.ValueMappingResult(text=text) for value, text in names.items()}
    return model.ValueMap(options=results)


def _colored(texts: Mapping[str, str]) -> model.ValueMap:
    return model.ValueMap(options={text: model.ValueMappingResult(color=color) for text, color in texts.items()})


_OTHERWISE_BAD = model.RegexMap(
    options=model.DashboardRegexMapOptions(pattern=".+", result=model.ValueMappingResult(color=style.BAD))
)


def _properties(query: Query) -> list[model.DynamicConfigValue]:
    properties = []
    if query.color is not None:
        properties.append(_property("color", style.fixed(query.color)))
    if query.dashed:
        properties.append(_property("custom.lineStyle", {"fill": "dash", "dash": [10, 10]}))
        properties.append(_property("custom.lineWidth", 2))
        properties.append(_property("custom.fillOpacity", 0))
        properties.append(_property("custom.stacking", {"group": "A", "mode": "none"}))
    return properties


def _property(name: str, value: object) -> model.DynamicConfigValue:
    return model.DynamicConfigValue(id_val=name, value=value)


def _range(query: Query, letter: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(letter).range()


def _instant(query: Query, letter: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(letter).instant()
