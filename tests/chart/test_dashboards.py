"""The ConfigMaps with dashboards: made where asked for, found by Grafana's sidecar, with the JSON unchanged."""

import json
from pathlib import Path

import pytest

CHART = Path(__file__).parents[2] / "helm" / "inflight"
FILES = {path.stem: path for path in (CHART / "dashboards").glob("*.json")}
MOST_BYTES = 1 << 20
"""Largest ConfigMap of Kubernetes, in bytes."""


def dashboards(helm, *flags):
    objects = helm.objects("--set", "dashboards.enabled=true", *flags)
    prefix = "prod-dashboard-"
    return {
        name.removeprefix(prefix): one
        for (kind, name), one in objects.items()
        if kind == "ConfigMap" and name.startswith(prefix)
    }


@pytest.fixture(scope="module")
def rendered(helm):
    return dashboards(helm)


def test_each_dashboard_is_a_config_map_with_the_label_of_the_sidecar(rendered):
    assert set(rendered) == set(FILES)
    assert set(rendered) > {"fleet", "service", "engine", "autopilot"}
    for one in rendered.values():
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert one["metadata"]["namespace"] == "inflight-system"
        assert "annotations" not in one["metadata"]


def test_the_json_is_that_of_the_file_with_its_legends(rendered):
    for name, one in rendered.items():
        ((file, text),) = one["data"].items()
        assert file == f"inflight-{name}.json"
        assert text.strip() == FILES[name].read_text().strip()
        assert json.loads(text)["uid"] == f"inflight-{name}"
    assert "{{namespace}}/{{name}}" in rendered["fleet"]["data"]["inflight-fleet.json"]


def test_a_config_map_takes_them(rendered):
    assert all(len(json.dumps(one).encode()) < MOST_BYTES / 2 for one in rendered.values())


def test_namespace_labels_and_folder_are_the_users(helm):
    made = dashboards(
        helm,
        *("--set", "dashboards.namespace=monitoring,dashboards.annotations.grafana_folder=Inflight"),
        *("--set-json", 'dashboards.labels={"grafana_dashboard":null,"team/dashboard":"yes"}'),
    )
    for one in made.values():
        assert one["metadata"]["namespace"] == "monitoring"
        assert one["metadata"]["annotations"] == {"grafana_folder": "Inflight"}
        assert one["metadata"]["labels"]["team/dashboard"] == "yes"
        assert "grafana_dashboard" not in one["metadata"]["labels"]


def test_without_the_value_there_are_none(helm):
    assert not [name for kind, name in helm.objects() if kind == "ConfigMap"]
