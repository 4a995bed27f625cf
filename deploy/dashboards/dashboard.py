"""A dashboard: rows of panels, the variables that choose services, and the operator's decisions as marks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from deploy.dashboards.kinds import Kind
from deploy.dashboards.panels import DATASOURCE, Json, Panel, present
from deploy.dashboards.queries import ONE_SERVICE, last_decisions

GRID_WIDTH = 24

ENGINES = "/d/inflight-engine"
"""Beginning of links to the engines of a service; those of other kinds have a suffix."""

OF_PROMETHEUS: Json = {
    "step": "15s",
    "useValueForTime": True,
    "tagKeys": "kind,reason",
    "titleFormat": "{{knob}} {{from}} → {{to}}",
    "textFormat": "{{reason}}",
}
"""Fields of an annotation that only Grafana's Prometheus data source knows (`PromAnnotation` in
`packages/grafana-prometheus/src/types.ts`)."""


@dataclass(frozen=True, slots=True)
class Row:
    """A titled row of the grid. Panels follow from left to right; a panel that does not fit starts the next line.

    Attributes:
        height: of all its panels, in grid units of 30 pixels.
        width: of each panel, of `GRID_WIDTH`; a table has the rest of its line.
    """

    title: str
    height: int
    width: int


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A dashboard.

    Attributes:
        rows: panels by their titles.
        several: whether several services can be chosen, or one.
        pods: whether pods of the service can be chosen.
        decisions: whether the operator's decisions mark the panels.
        since: begin of the default time range.
        kind: kind of the engines of the services that can be chosen; None for all.
    """

    name: str
    description: str
    rows: Mapping[Row, Mapping[str, Panel]]
    several: bool = False
    pods: bool = False
    decisions: bool = False
    since: str = "now-1h"
    kind: Kind | None = None

    def of(self, kind: Kind) -> Dashboard:
        """Returns the dashboard for services of one kind, without rows, panels and lines that these do not have."""
        rows = {}
        for row, panels in self.rows.items():
            left = {title: panel.with_metrics(kind.has) for title, panel in panels.items()}
            if any(left.values()):
                rows[row] = {title: panel for title, panel in left.items() if panel is not None}
        return replace(self, name=f"{self.name}{kind.suffix}", rows=rows, kind=kind)

    def text(self) -> str:
        """The dashboard's JSON."""
        marks = [_decisions("Replica", "Scaling", "green"), _decisions("Limit", "Tuning", "purple")]
        link = {
            "title": "Inflight",
            "type": "dashboards",
            "icon": "external link",
            "tooltip": "",
            "tags": ["inflight"],
            "asDropdown": False,
            "targetBlank": False,
            "includeVars": True,
            "keepTime": True,
        }
        whole = {
            "schemaVersion": 41,
            "templating": {"list": self._variables()},
            "annotations": {"list": marks} if self.decisions else {},
            "uid": f"inflight-{self.name}",
            "title": f"Inflight / {self._title}",
            "description": self.description,
            "tags": ["inflight"],
            "timezone": "browser",
            "editable": True,
            "graphTooltip": 1,
            "time": {"from": self.since, "to": "now"},
            "fiscalYearStartMonth": 0,
            "refresh": "30s",
            "panels": self._panels(),
            "links": [link],
        }
        text = json.dumps(whole, indent=2, ensure_ascii=False) + "\n"
        return text if self.kind is None else text.replace(f"{ENGINES}?", f"{ENGINES}{self.kind.suffix}?")

    @property
    def _title(self) -> str:
        if self.kind is None or not self.kind.suffix:
            return self.name.capitalize()
        return f"{self.name.removesuffix(self.kind.suffix).capitalize()} ({self.kind.title})"

    def _panels(self) -> list[Json]:
        made: list[Json] = []
        top = 0
        for row, panels in self.rows.items():
            place = _place(0, top, GRID_WIDTH, 1)
            head = {"type": "row", "collapsed": False, "id": len(made) + 1, "panels": [], "title": row.title}
            made.append(head | {"gridPos": place})
            top, left = top + 1, 0
            for title, panel in panels.items():
                if left + row.width > GRID_WIDTH:
                    top, left = top + row.height, 0
                width = GRID_WIDTH - left if panel.kind == "table" else row.width
                made.append(panel.json(len(made) + 1, title, _place(left, top, width, row.height)))
                left += width
            top += row.height
        return made

    def _variables(self) -> list[Json]:
        services = "inflight_operator_service_state"
        kind = [] if self.kind is None else [f'engine="{self.kind.name}"']
        chosen = ['namespace=~"$namespace"' if self.several else 'namespace="$namespace"', *kind]
        pods = f"label_values(vllm:num_requests_running{{{ONE_SERVICE}}}, pod)"
        return [
            _variable("datasource", "Data source", "prometheus"),
            _variable(
                "namespace", "Namespace", f"label_values({_of(services, kind)}, namespace)", several=self.several
            ),
            _variable("service", "Service", f"label_values({_of(services, chosen)}, name)", several=self.several),
            *([_variable("pod", "Pod", pods, several=True)] if self.pods else []),
        ]


def _of(metric: str, matchers: Sequence[str]) -> str:
    return f"{metric}{{{', '.join(matchers)}}}" if matchers else metric


def _place(left: int, top: int, width: int, height: int) -> Json:
    return {"h": height, "w": width, "x": left, "y": top}


def _variable(name: str, label: str, query: str, *, several: bool = False) -> Json:
    """The Prometheus to ask, or values of a label, read again when the time range changes.

    Args:
        several: more than one value, and all, may be chosen; all is the default.
    """
    asked = name != "datasource"
    return present(
        type="query" if asked else "datasource",
        name=name,
        label=label,
        skipUrlSync=False,
        query=query,
        datasource=DATASOURCE if asked else None,
        current={"text": "All", "value": "$__all", "selected": True} if several else None,
        multi=several,
        allowCustomValue=True,
        refresh=2 if asked else None,  # when the time range changes
        sort=1 if asked else None,  # by the alphabet
        includeAll=several,
        # Not the list of all values: a thousand services would make a query of many kilobytes.
        allValue=".+" if several else None,
        auto=False,
        auto_min="10s",
        auto_count=30,
    )


def _decisions(title: str, kind: str, color: str) -> Json:
    """Marks decisions of one kind (`Scaling` or `Tuning`), at the time that the metric has as its value."""
    return {
        "name": f"{title} decisions",
        "datasource": DATASOURCE,
        "enable": True,
        "iconColor": color,
        "hide": False,
        "builtIn": 0,
        "expr": last_decisions(f'{ONE_SERVICE}, kind="{kind}"'),
        **OF_PROMETHEUS,
    }
