"""The dashboards in the chart."""

from __future__ import annotations

import sys
from pathlib import Path

from deploy.dashboards import autopilot, engine, fleet, service
from deploy.dashboards.kinds import KINDS
from tools import generated
from tools.testbed.helm import CHART

FOLDER = CHART / "dashboards"


def documents() -> dict[Path, str]:
    """The JSON of each dashboard, by its file."""
    of_kinds = (one.of(kind) for kind in KINDS for one in (service.DASHBOARD, engine.DASHBOARD, autopilot.DASHBOARD))
    every = (fleet.DASHBOARD, *of_kinds)
    return {FOLDER / f"{one.name}.json": one.text() for one in every if one.rows}


if __name__ == "__main__":
    sys.exit(generated.run("deploy.dashboards", __doc__, documents()))
