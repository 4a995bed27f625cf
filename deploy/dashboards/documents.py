"""All dashboards as the JSON documents that the chart ships."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.dashboards import autopilot, engine, fleet, service
from tools.testbed.helm import CHART

FOLDER = CHART / "dashboards"

DASHBOARDS: dict[str, Dashboard] = {
    "fleet": fleet.dashboard(),
    "service": service.dashboard(),
    "engine": engine.dashboard(),
    "autopilot": autopilot.dashboard(),
}
"""By the name of the file; the uid is `inflight-` and this name."""


def documents() -> dict[str, str]:
    """Text of each file, by its name without `.json`."""
    encoder = JSONEncoder(indent=2, ensure_ascii=False)
    return {name: encoder.encode(one.build()) + "\n" for name, one in DASHBOARDS.items()}
