"""Type checks of the dashboards against `@grafana/schema`.

Grafana publishes the types of its dashboards and panels for TypeScript, so each dashboard is written as a TypeScript
literal, and `tsc` reads it. The npm packages of `schema` are installed at first, which takes two
seconds.
"""

from __future__ import annotations

import copy
import fcntl
import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy.dashboards.dashboard import OF_PROMETHEUS
from tools.localcluster import ClusterError
from tools.localcluster.files import write_whole
from tools.localcluster.programs import packages

FOLDER = Path(__file__).with_name("schema")

_PANELS = {"timeseries": "TimeSeries", "stat": "Stat", "bargauge": "BarGauge", "table": "Table"}
"""Panel type: name of its types in the schema."""

_FIELDS = ("timeseries", "table")
"""Panel types with options of their own for fields."""

_OF_INTERVALS = ("auto", "auto_min", "auto_count")
"""Fields that Grafana 11 writes for every variable; later schemas have them in interval variables only."""

_OF_OLDER_TABLES = ("footer",)
"""Options of tables in Grafana 11; later versions ignore them."""

_HEAD = """\
import type { Dashboard, Panel } from '@grafana/schema';
type Literal<T> = T extends (infer U)[] ? Literal<U>[] : T extends string ? `${T}`
  : T extends object ? { [K in keyof T]?: Literal<T[K]> } : T;
"""
"""String literals are no members of a string enumeration, so enumerations are read as their words."""

_CONFIGURATION = {
    "compilerOptions": {
        "strict": True,
        "noEmit": True,
        "skipLibCheck": True,
        "module": "esnext",
        "moduleResolution": "bundler",
        "target": "es2022",
        "types": [],
    },
    "include": ["*.ts"],
}


def typescript(dashboard: Mapping[str, Any]) -> str:
    """The dashboard as constants, each with the type that Grafana gives it."""
    whole: dict[str, Any] = copy.deepcopy(dict(dashboard))
    panels = [panel for panel in whole.pop("panels") if panel["type"] != "row"]
    for annotation in whole["annotations"].get("list", []):
        for field in ("expr", *OF_PROMETHEUS):  # of the data source, which the schema does not have
            annotation.pop(field, None)
    for variable in whole["templating"]["list"]:
        for field in _OF_INTERVALS:
            variable.pop(field, None)
    lines = [_HEAD, *(_import(kind) for kind in sorted({panel["type"] for panel in panels}))]
    lines.append(_constant("dashboard", "Dashboard", whole))
    for panel in panels:
        name, kind = f"panel{panel['id']}", _PANELS[panel["type"]]
        options = panel.pop("options", {})
        if panel["type"] == "table":
            options = {key: value for key, value in options.items() if key not in _OF_OLDER_TABLES}
        custom = panel["fieldConfig"]["defaults"].pop("custom", {}) if panel["type"] in _FIELDS else None
        lines.append(_constant(name, "Panel", panel))
        lines.append(_constant(f"{name}Options", f"{kind}.Options", options))
        if custom is not None:
            lines.append(_constant(f"{name}Custom", f"{kind}.FieldConfig", custom))
    return "\n".join(lines)


def _import(kind: str) -> str:
    name = _PANELS[kind]
    return (
        f"import type * as {name} from '@grafana/schema/dist/esm/raw/composable/{kind}/panelcfg/x/"
        f"{name}PanelCfg_types.gen';"
    )


def _constant(name: str, kind: str, value: object) -> str:
    return f"export const {name}: Literal<{kind}> = {json.dumps(value, indent=1)};"


def packages_installed() -> Path:
    """The folder of the npm packages that package-lock.json pins; one process at a time installs them after a change.

    Raises:
        ClusterError: npm is missing, or it failed; the message has its output.
    """
    modules = FOLDER / "node_modules"
    stamp, digest = modules / ".installed", hashlib.sha256((FOLDER / "package-lock.json").read_bytes()).hexdigest()
    opened = os.open(FOLDER, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != digest:
            command = [packages.require("npm"), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
            if done.returncode:
                raise ClusterError(f"`npm ci` failed in {FOLDER}:\n{done.stdout}{done.stderr}")
            write_whole(stamp, digest)
    finally:
        os.close(opened)
    return modules


def problems(dashboards: Mapping[str, Mapping[str, Any]]) -> str:
    """Errors of `tsc`; empty without errors.

    Raises:
        ClusterError: npm is missing, or the packages cannot be installed.
    """
    modules = packages_installed()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "node_modules").symlink_to(modules.resolve())
        (folder / "tsconfig.json").write_text(json.dumps(_CONFIGURATION))
        for title, dashboard in dashboards.items():
            (folder / f"{title}.ts").write_text(typescript(dashboard))
        compiler = modules / ".bin" / "tsc"
        done = subprocess.run([compiler, "-p", folder], cwd=folder, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr
