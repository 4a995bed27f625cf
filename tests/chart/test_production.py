"""The installation with values-production.yaml."""

from pathlib import Path

import pytest
import yaml

from tests.chart.test_dashboards import FILES

CHART = Path(__file__).parents[2] / "helm" / "inflight"
VALUES = CHART / "values-production.yaml"
OPERATOR = "prod-operator"


@pytest.fixture(scope="module")
def objects(helm):
    return helm.objects("--values", str(VALUES))


@pytest.fixture(scope="module")
def pod(objects):
    return objects[("Deployment", OPERATOR)]["spec"]["template"]["spec"]


def test_lint_is_strict_and_clean(helm):
    assert "0 chart(s) failed" in helm.ok("lint", "--strict", str(CHART), "--values", str(VALUES))


def test_two_operators_on_different_nodes_survive_a_drain_and_are_not_preempted_first(objects, pod):
    assert objects[("Deployment", OPERATOR)]["spec"]["replicas"] == 2
    assert objects[("PodDisruptionBudget", OPERATOR)]["spec"]["maxUnavailable"] == 1
    assert objects[("PriorityClass", OPERATOR)]["value"] == 1000000
    assert pod["priorityClassName"] == OPERATOR
    strict = [one for one in pod["topologySpreadConstraints"] if one["whenUnsatisfiable"] == "DoNotSchedule"]
    assert [one["topologyKey"] for one in strict] == ["kubernetes.io/hostname"]


def test_it_is_observed_and_restricted(objects, pod):
    kinds = {kind for kind, _ in objects}
    assert kinds >= {"ServiceMonitor", "PrometheusRule", "NetworkPolicy"}
    assert {name for kind, name in objects if kind == "ConfigMap"} == {f"prod-dashboard-{name}" for name in FILES}
    assert objects[("NetworkPolicy", OPERATOR)]["spec"]["policyTypes"] == ["Ingress", "Egress"]
    (container,) = pod["containers"]
    assert set(container["resources"]) == {"requests", "limits"}


def test_it_names_only_what_differs_from_the_defaults():
    def differing(values, defaults, path=""):
        for name, value in values.items():
            if isinstance(value, dict) and isinstance(defaults[name], dict) and name != "resources":
                yield from differing(value, defaults[name], f"{path}{name}.")
            elif value == defaults[name]:
                yield f"{path}{name}"

    values, defaults = (yaml.safe_load(file.read_text()) for file in (VALUES, CHART / "values.yaml"))
    assert list(differing(values, defaults)) == []
