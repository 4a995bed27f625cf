"""Upgrade from the chart of the last release to this one on a real API server: nothing is lost, nothing is refused."""

from pathlib import Path

import pytest
import yaml

from tests.contract.definitions import established

PROJECT = Path(__file__).parents[2]
CHART = PROJECT / "helm" / "inflight"
PREVIOUS = Path(__file__).with_name("previous") / "inflight-0.1.0.tgz"
NAMESPACE = "upgraded"
CRD = "inferenceservices.inflight.dev"

pytestmark = pytest.mark.contract

SPEC = {
    "model": {"source": "hf://Qwen/Qwen3-8B", "storage": "40Gi"},
    "engine": {"maxNumSeqs": 64, "kvCache": {"headroom": 0.1}, "scheduling": {"classes": [{"name": "chat"}]}},
    "slo": {"ttftP95": "1s"},
    "rollout": {"startupTimeout": "1h"},
    "template": {
        "nodeSelector": {"pool": "llm"},
        "env": [{"name": "A", "value": "b"}],
        "priorityClassName": "serving",
        "affinity": {"nodeAffinity": {}},
    },
}


@pytest.fixture(scope="module")
def previous(cluster_helm, kubectl):
    """The last release installed, with a service that was created under it and has a status; gone afterwards."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    created = kubectl.create(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}
    )
    assert created.returncode == 0, created.stderr
    cluster_helm.ok("install", "inflight", str(PREVIOUS), "--namespace", NAMESPACE, "--set", "interval=7")
    established(kubectl, CRD)
    service = {
        "apiVersion": "inflight.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "kept", "namespace": NAMESPACE},
        "spec": SPEC,
    }
    created = kubectl.create(service)
    assert created.returncode == 0, created.stderr
    status = '{"status": {"replicas": 3, "desiredReplicas": 3}}'
    kubectl.ok("patch", "ifsvc", "kept", "-n", NAMESPACE, "--subresource=status", "--type=merge", "-p", status)
    yield kubectl.json("get", "ifsvc", "kept", "-n", NAMESPACE)
    cluster_helm.run("uninstall", "inflight", "--namespace", NAMESPACE)
    kubectl.ok("delete", "crd", CRD, "--ignore-not-found")


def upgrade(cluster_helm, *flags):
    return cluster_helm.run("upgrade", "inflight", str(CHART), "--namespace", NAMESPACE, *flags)


def kept(kubectl):
    return kubectl.json("get", "ifsvc", "kept", "-n", NAMESPACE)


def deployment(kubectl):
    return kubectl.json("get", "deployment", "inflight-operator", "-n", NAMESPACE)


def test_the_archive_is_the_release_before_this_one():
    versions = [line.split()[0].strip("[]") for line in changelog() if line.split()[0] != "[Unreleased]"]
    current = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
    assert versions[0] == current
    assert PREVIOUS.name == f"inflight-{versions[1]}.tgz"


def changelog():
    text = (PROJECT / "CHANGELOG.md").read_text()
    return [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]


def test_services_are_as_they_were_and_valid_after_the_upgrade(previous, cluster_helm, kubectl):
    before = deployment(kubectl)
    refused = upgrade(cluster_helm, "--reuse-values")
    assert "networkPolicy is required" in refused.stderr
    done = upgrade(cluster_helm, "--reset-then-reuse-values")
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr.lower()

    after = deployment(kubectl)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["spec"]["selector"] == before["spec"]["selector"]
    assert "--interval=7" in after["spec"]["template"]["spec"]["containers"][0]["args"]
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    assert after["spec"]["template"]["spec"]["containers"][0]["image"] == f"inflight-operator:{version}"

    service = kept(kubectl)
    assert service["metadata"]["uid"] == previous["metadata"]["uid"]
    assert service["metadata"]["generation"] == previous["metadata"]["generation"]
    assert service["status"] == previous["status"]
    # Fields that the release before did not have show their defaults, which change nothing.
    spec = service["spec"]
    assert spec.pop("gateway")["enabled"] is False
    assert spec.pop("disaggregation")["mode"] == "Off"
    spec["scaling"] = {name: spec["scaling"][name] for name in previous["spec"]["scaling"]}
    assert spec["engine"].pop("type") == "inflight"
    assert spec["engine"].pop("plugin") is True
    assert spec["engine"].pop("grpc") is False
    assert spec["engine"].pop("kvEvents") is False
    assert spec == previous["spec"]
    kubectl.ok("annotate", "ifsvc", "kept", "-n", NAMESPACE, "touched=yes")


def test_fields_of_this_release_are_accepted_after_the_upgrade(previous, kubectl):
    spread = '{"spec": {"template": {"topologySpreadConstraints": [{"topologyKey": "topology.kubernetes.io/zone"}]}}}'
    kubectl.ok("patch", "ifsvc", "kept", "-n", NAMESPACE, "--type=merge", "-p", spread)
    (constraint,) = kept(kubectl)["spec"]["template"]["topologySpreadConstraints"]
    assert (constraint["maxSkew"], constraint["whenUnsatisfiable"]) == (1, "ScheduleAnyway")


def test_production_values_and_the_way_back_meet_no_immutable_field(previous, cluster_helm, kubectl):
    # Without the Prometheus operator's API on this server.
    without = ("--set", "metrics.monitor.enabled=false,metrics.rules.enabled=false")
    done = upgrade(cluster_helm, "--values", str(CHART / "values-production.yaml"), *without)
    assert done.returncode == 0, done.stderr
    assert deployment(kubectl)["spec"]["replicas"] == 2
    assert kubectl.json("get", "priorityclass", "inflight-operator")["value"] == 1000000

    cluster_helm.ok("rollback", "inflight", "1", "--namespace", NAMESPACE)
    assert deployment(kubectl)["spec"]["replicas"] == 1
    assert kept(kubectl)["metadata"]["uid"] == previous["metadata"]["uid"]
    assert "topologySpreadConstraints" not in kept(kubectl)["spec"]["template"]
    assert kubectl.ok("get", "priorityclass,networkpolicy", "-A", "-l", "app.kubernetes.io/part-of=inflight") == ""
