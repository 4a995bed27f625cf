"""Tables: a row for each service or pod, with a column for each number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from grafana_foundation_sdk.builders import common, prometheus, table
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from deploy.dashboards import style
from deploy.dashboards.panels import DATASOURCE, field_property, mapping


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
    """A row for each set of labels, with current values.

    Args:
        labels: names of labels, in the order of their columns, and headers.
        sort: header of a column, and whether from the largest value.
        links: title and address, by the header of the column that carries them.
        colors: of texts, by the header of their column; any other text there is bad.
        widths: of columns in pixels, by their headers; the others share the rest.
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
        panel.override_by_name(header, [field_property("links", [{"title": text, "url": address}])])
    for header, texts in (colors or {}).items():
        panel.override_by_name(
            header,
            [
                field_property("mappings", [_colored(texts), _OTHERWISE_BAD]),
                field_property("custom.cellOptions", {"type": "color-text"}),
            ],
        )
    for header, width in (widths or {}).items():
        panel.override_by_name(header, [field_property("custom.width", width)])
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
    properties = [field_property("unit", column.unit)]
    if column.decimals is not None:
        properties.append(field_property("decimals", column.decimals))
    if column.names is not None:
        properties.append(field_property("mappings", [mapping(column.names)]))
    if column.steps is not style.PLAIN:
        properties.append(field_property("thresholds", style.thresholds(column.steps).build()))
        properties.append(field_property("custom.cellOptions", {"type": "color-text"}))
    return properties


def _colored(texts: Mapping[str, str]) -> model.ValueMap:
    return model.ValueMap(options={text: model.ValueMappingResult(color=color) for text, color in texts.items()})


_OTHERWISE_BAD = model.RegexMap(
    options=model.DashboardRegexMapOptions(pattern=".+", result=model.ValueMappingResult(color=style.BAD))
)
