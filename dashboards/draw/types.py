"""Dashboards as TypeScript literals with the types of @grafana/schema, for the compiler to check. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dashboards.live.grafana import panels

PANEL_TYPES = {"bargauge": "BarGauge", "stat": "Stat", "table": "Table", "timeseries": "TimeSeries"}
"""Those that are drawn, and the names of their types."""

_NOT_TYPED = {
    # Of interval variables; the foundation SDK writes them for all kinds.
    "variable": {"auto", "auto_min", "auto_count"},
    # Of annotations of the Prometheus data source, which has no types in the schema.
    "annotation": {"expr", "step", "useValueForTime", "tagKeys", "titleFormat", "textFormat"},
    # Of Grafana 11's table, whose defaults the foundation SDK writes; Grafana 12 took the option away.
    "table": {"footer"},
}
"""Keys that are right and not in the schema, so that the compiler is not asked about them."""

_HEAD = """\
import type { Dashboard, Panel } from '@grafana/schema';
// All fields optional, and the words of an enumeration as they stand in JSON.
type Partly<T> = T extends (infer U)[] ? Partly<U>[]
  : T extends string ? `${T}` : T extends object ? { [K in keyof T]?: Partly<T[K]> } : T;"""
_MODULE = "@grafana/schema/dist/esm/raw/composable/{type}/panelcfg/x/{name}PanelCfg_types.gen"


def literals(dashboard: Mapping[str, Any]) -> str:
    """A TypeScript module that compiles where every key and every word of the dashboard is Grafana's.

    The schema types a panel's options by the panel's type only, so each panel is a constant of its own, and its options
    and field options are two more.

    Raises:
        ValueError: a panel has a type that is not drawn.
    """
    lines = [_HEAD]
    found = list(panels(dashboard))
    for kind in sorted({panel["type"] for panel in found}):
        if kind not in PANEL_TYPES:
            raise ValueError(f"{dashboard['title']}: panel type {kind} is not drawn: use {', '.join(PANEL_TYPES)}")
        name = PANEL_TYPES[kind]
        lines.append(f"import type * as {name} from '{_MODULE.format(type=kind, name=name)}';")
    lines.append(_constant("dashboard", "Dashboard", _frame(dashboard)))
    for panel in found:
        number, name = panel["id"], PANEL_TYPES[panel["type"]]
        config = panel.get("fieldConfig") or {}
        defaults = dict(config.get("defaults") or {})
        custom = defaults.pop("custom", {})
        rest = {key: value for key, value in panel.items() if key != "options"}
        lines.append(f"// {panel['title']}")
        lines.append(_constant(f"panel{number}", "Panel", {**rest, "fieldConfig": {**config, "defaults": defaults}}))
        lines.append(
            _constant(f"options{number}", f"{name}.Options", _typed(panel["type"], panel.get("options") or {}))
        )
        if custom:
            lines.append(_constant(f"custom{number}", f"{name}.FieldConfig", custom))
    return "\n".join(lines) + "\n"


def _frame(dashboard: Mapping[str, Any]) -> dict[str, Any]:
    """The dashboard without its panels."""
    lists = {
        part: {"list": [_typed(kind, one) for one in (dashboard.get(part) or {}).get("list") or ()]}
        for part, kind in (("templating", "variable"), ("annotations", "annotation"))
    }
    return {**dashboard, **lists, "panels": []}


def _typed(kind: str, value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: one for key, one in value.items() if key not in _NOT_TYPED.get(kind, ())}


def _constant(name: str, type_name: str, value: Any) -> str:
    return f"export const {name}: Partly<{type_name}> = {json.dumps(value)};"
