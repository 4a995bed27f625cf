"""The dashboards against Grafana's own types."""

import copy

import pytest

from tests.deploy.dashboards.checked import DASHBOARDS
from tests.deploy.dashboards.typecheck import problems
from tools.localcluster.programs import packages

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (packages.find("npm") and packages.find("node")), reason="npm is missing, which installs Grafana's types"
    ),
]


def test_dashboards_are_of_grafanas_types():
    assert problems(DASHBOARDS) == ""


def test_faults_are_found():
    faulty = copy.deepcopy(DASHBOARDS["service"])
    stat = next(panel for panel in faulty["panels"] if panel["type"] == "stat")
    lines = next(panel for panel in faulty["panels"] if panel["type"] == "timeseries")
    stat["options"]["colorMode"] = "colourful"
    stat["gridPos"]["width"] = 3
    lines["options"]["legnd"] = {}
    lines["fieldConfig"]["defaults"]["custom"]["lineWdth"] = 2
    found = problems({"faulty": faulty})
    assert all(word in found for word in ("colourful", "width", "legnd", "lineWdth")), found
