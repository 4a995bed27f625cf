"""Parts shared by all dashboards: variables, links, time range, and the grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard as model

from deploy.dashboards.panels import DATASOURCE, Panel

TAG = "inflight"
GRID_WIDTH = 24


@dataclass(frozen=True, slots=True)
class Row:
    """A titled row of the grid. Panels follow from left to right; a panel that does not fit starts the next line.

    Attributes:
        height: of all its panels, in grid units of 30 pixels.
        panels: each with its width, of `GRID_WIDTH`.
    """

    title: str
    height: int
    panels: Sequence[tuple[int, Panel]]


def uid(name: str) -> str:
    """Of the dashboard in the file `name`.json."""
    return f"inflight-{name}"


def assemble(
    name: str,
    title: str,
    description: str,
    variables: Sequence[Builder[model.VariableModel]],
    rows: Sequence[Row],
    *,
    since: str = "now-1h",
) -> build.Dashboard:
    """A dashboard with its rows laid out.

    Args:
        since: begin of the default time range.
    """
    made = (
        build.Dashboard(title)
        .uid(uid(name))
        .description(description)
        .tags([TAG])
        .time(since, "now")
        .refresh("30s")
        .timezone("browser")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .link(
            build.DashboardLink("Inflight")
            .type(model.DashboardLinkType.DASHBOARDS)
            .icon("external link")
            .tags([TAG])
            .include_vars(True)
            .keep_time(True)
        )
    )
    for variable in variables:
        made.with_variable(variable)
    top, number = 0, 0
    for row in rows:
        number += 1
        made.with_row(build.Row(row.title).id(number).grid_pos(_position(0, top, GRID_WIDTH, 1)))
        top, left = top + 1, 0
        for width, panel in row.panels:
            if left + width > GRID_WIDTH:
                top, left = top + row.height, 0
            number += 1
            made.with_panel(panel.id(number).grid_pos(_position(left, top, width, row.height)))
            left += width
        top += row.height
    return made


def _position(left: int, top: int, width: int, height: int) -> model.GridPos:
    return model.GridPos(x=left, y=top, w=width, h=height)


def datasource_variable() -> build.DatasourceVariable:
    """The Prometheus to ask."""
    return build.DatasourceVariable("datasource").label("Data source").type("prometheus")


def query_variable(name: str, label: str, query: str, *, several: bool) -> build.QueryVariable:
    """Values of a label, read again when the time range changes.

    Args:
        several: more than one value, and all, may be chosen; all is the default.
    """
    variable = (
        build.QueryVariable(name)
        .label(label)
        .datasource(DATASOURCE)
        .query(query)
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_ASC)
    )
    if not several:
        return variable
    # Not the list of all values: a thousand services would make a query of many kilobytes.
    everything = model.VariableOption(selected=True, text="All", value="$__all")
    return variable.multi(True).include_all(True).all_value(".+").current(everything)


def service_variables(*, several: bool) -> list[Builder[model.VariableModel]]:
    """Data source, namespace and service, in this order."""
    services = "inflight_operator_service_state"
    chosen = 'namespace=~"$namespace"' if several else 'namespace="$namespace"'
    return [
        datasource_variable(),
        query_variable("namespace", "Namespace", f"label_values({services}, namespace)", several=several),
        query_variable("service", "Service", f"label_values({services}{{{chosen}}}, name)", several=several),
    ]
