"""The dashboards as the chart ships them, and their queries, for the tests of this folder."""

import json
import re
from dataclasses import dataclass

from deploy.dashboards.__main__ import FOLDER
from deploy.dashboards.kinds import KINDS

DASHBOARDS = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
NAMES = tuple(DASHBOARDS)
OF_EACH_KIND = ("service", "engine", "autopilot")
KIND = {f"{name}{kind.suffix}": kind.name for name in OF_EACH_KIND for kind in KINDS}
"""Kind of engines by the dashboard."""

_VARIABLES = {
    "$__rate_interval": "1m",
    "$__range": "6h",
    "$__interval": "15s",
    "$namespace": "team",
    "$service": "chat",
    "$pod": "chat-0",
}


@dataclass(frozen=True)
class CheckedQuery:
    """A query: which dashboard and panel asks, and what."""

    dashboard: str
    panel: str
    expr: str

    @property
    def replaced(self) -> str:
        """PromQL: with values for Grafana's variables."""
        expr = self.expr
        for name, value in _VARIABLES.items():
            expr = expr.replace(name, value)
        assert not re.search(r"\$(?!1\b)", expr), expr  # $1: a group of label_replace
        return expr


def panels(dashboard):
    """All panels but rows."""
    return [one for one in dashboard["panels"] if one["type"] != "row"]


def queries():
    """Queries of panels, annotations and variables."""
    for name, dashboard in DASHBOARDS.items():
        for panel in panels(dashboard):
            yield from (CheckedQuery(name, panel["title"], target["expr"]) for target in panel["targets"])
        for annotation in dashboard["annotations"].get("list", []):
            yield CheckedQuery(name, annotation["name"], annotation["expr"])
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                series = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
                yield CheckedQuery(name, f"${variable['name']}", f"count by ({series[2]}) ({series[1]})")
