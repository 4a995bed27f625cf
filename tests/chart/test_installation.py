"""The chart on a real API server: installed, upgraded, uninstalled, under Pod Security `restricted`."""

import copy
import re
from pathlib import Path

import pytest
import yaml

from tests.contract.definitions import established

PROJECT = Path(__file__).parents[2]
CHART = PROJECT / "helm" / "inflight"
SYSTEM = "inflight-system"
CRD = "inferenceservices.inflight.dev"
ACCOUNT = f"system:serviceaccount:{SYSTEM}:inflight-operator"

pytestmark = pytest.mark.contract


@pytest.fixture(scope="module")
def release(cluster_helm, kubectl):
    """The chart installed as `inflight` in a namespace that enforces `restricted`; gone afterwards."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted"}
    objects = (
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM, "labels": labels}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": SYSTEM}},
    )
    # Applied, not created: another file's tests may have left the namespace.
    kubectl.ok("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=yaml.safe_dump_all(objects))
    done = cluster_helm.run("install", "inflight", str(CHART), "--namespace", SYSTEM, "--set", "replicas=2")
    assert done.returncode == 0, done.stderr
    established(kubectl, CRD)
    yield done
    cluster_helm.run("uninstall", "inflight", "--namespace", SYSTEM)
    kubectl.ok("delete", "crd", CRD, "--ignore-not-found")


def pods(cluster_helm):
    """The pods the chart brings: the operator's, as its Deployment would make it, and the test's."""
    manifest = cluster_helm.ok("get", "manifest", "inflight", "--namespace", SYSTEM)
    hooks = cluster_helm.ok("get", "hooks", "inflight", "--namespace", SYSTEM)
    objects = [o for o in yaml.load_all(manifest + hooks, yaml.CSafeLoader) if o]
    deployment = next(o for o in objects if o["kind"] == "Deployment")
    template = copy.deepcopy(deployment["spec"]["template"])
    template["metadata"]["generateName"] = "operator-"
    yield {"apiVersion": "v1", "kind": "Pod", **template}
    yield next(o for o in objects if o["kind"] == "Pod")


def test_installs_without_a_warning(release):
    assert "warning" not in release.stderr.lower(), release.stderr
    assert "STATUS: deployed" in release.stdout


def test_its_pods_are_admitted_under_pod_security_restricted(release, cluster_helm, kubectl):
    for pod in pods(cluster_helm):
        admitted = kubectl.create(pod, flags=["--dry-run=server", "--namespace", SYSTEM])
        assert admitted.returncode == 0, admitted.stderr
        loosened = copy.deepcopy(pod)
        del loosened["spec"]["containers"][0]["securityContext"]
        refused = kubectl.create(loosened, flags=["--dry-run=server", "--namespace", SYSTEM])
        assert 'violates PodSecurity "restricted' in refused.stderr


def test_the_gateways_objects_are_valid_and_its_pods_are_admitted_under_pod_security_restricted(release, helm, kubectl):
    given = helm.objects("--set", "gateway.enabled=true")
    objects = [one for (_, name), one in given.items() if name.startswith("prod-gateway")]
    flags = ["--dry-run=server", "--validate=strict"]
    created = kubectl.create(*objects, flags=flags)
    assert created.returncode == 0, created.stderr
    assert "warning" not in created.stderr.lower(), created.stderr
    template = copy.deepcopy(given[("Deployment", "prod-gateway")]["spec"]["template"])
    template["metadata"]["generateName"] = "gateway-"
    template["spec"]["serviceAccountName"] = "default"  # that of the gateway exists once it is installed
    admitted = kubectl.create({"apiVersion": "v1", "kind": "Pod", **template}, flags=[*flags, "--namespace", SYSTEM])
    assert admitted.returncode == 0, admitted.stderr


def test_the_notes_hold_a_service_that_the_api_server_takes(release, kubectl):
    found = re.search(r"kubectl apply -f - <<EOF\n(.*?)\n  EOF", release.stdout, re.DOTALL)
    assert found
    manifest = "\n".join(line.removeprefix("  ") for line in found[1].splitlines())
    spec = manifest.partition("spec:\n")[2].splitlines()
    assert len(spec) <= 4
    accepted = kubectl.run("apply", "--dry-run=server", "-f", "-", stdin=manifest)
    assert accepted.returncode == 0, accepted.stderr


def test_the_notes_forward_the_port_that_services_have(release):
    from inflight_operator.render.service import SERVICE_PORT

    assert f"port-forward -n {SYSTEM} service/chat 8000:{SERVICE_PORT}" in release.stdout


@pytest.mark.parametrize("path", sorted((PROJECT / "examples").glob("*.yaml")), ids=lambda p: p.name)
def test_examples_are_accepted(release, kubectl, path):
    assert "created (server dry run)" in kubectl.ok("apply", "--dry-run=server", "-f", str(path))


@pytest.mark.parametrize(
    ("verb", "resource", "namespace"),
    [
        ("watch", "inferenceservices.inflight.dev", None),
        ("patch", "inferenceservices.inflight.dev --subresource=status", "team"),
        ("create", "inferenceservices.inflight.dev", "team"),
        ("patch", "inferenceservices.inflight.dev", "team"),
        ("delete", "inferenceservices.inflight.dev", "team"),
        ("create", "deployments.apps", "team"),
        ("patch", "deployments.apps", "team"),
        ("delete", "networkpolicies.networking.k8s.io", "team"),
        ("create", "poddisruptionbudgets.policy", "team"),
        ("create", "jobs.batch", "team"),
        ("get", "persistentvolumeclaims", "team"),
        ("list", "nodes", None),
        ("patch", "pods", "team"),
        ("create", "events.events.k8s.io", "team"),
        ("watch", "endpointslices.discovery.k8s.io", "team"),
        ("patch", "endpointslices.discovery.k8s.io", "team"),
        ("delete", "endpointslices.discovery.k8s.io", "team"),
        ("create", "secrets", "team"),
        ("patch", "secrets", "team"),
        ("get", "secrets/inflight-operator-key", SYSTEM),
        ("create", "leases.coordination.k8s.io", SYSTEM),
        ("update", "leases.coordination.k8s.io/inflight-operator", SYSTEM),
    ],
)
def test_the_operator_may_do_what_it_does(release, api_server, verb, resource, namespace):
    assert api_server.allows(ACCOUNT, verb, resource, namespace)


@pytest.mark.parametrize(
    ("verb", "resource", "namespace"),
    [
        ("update", "inferenceservices.inflight.dev", "team"),
        ("get", "secrets", "team"),
        ("list", "secrets", "team"),
        ("watch", "secrets", None),
        ("delete", "secrets", "team"),
        ("list", "inferencepools.inference.networking.k8s.io", "team"),
        ("get", "secrets/inflight-operator-key", "team"),
        ("get", "secrets/other", SYSTEM),
        ("list", "secrets", SYSTEM),
        ("patch", "validatingadmissionpolicies.admissionregistration.k8s.io", None),
        ("create", "pods", "team"),
        ("create", "pods --subresource=exec", "team"),
        ("delete", "pods", "team"),
        ("update", "leases.coordination.k8s.io/inflight-operator", "team"),
        ("update", "leases.coordination.k8s.io/other", SYSTEM),
        ("create", "rolebindings.rbac.authorization.k8s.io", "team"),
        ("create", "serviceaccounts --subresource=token", SYSTEM),
        ("get", "nodes", None),
        ("delete", "customresourcedefinitions.apiextensions.k8s.io", None),
    ],
)
def test_the_operator_may_not_do_more(release, api_server, verb, resource, namespace):
    assert not api_server.allows(ACCOUNT, verb, resource, namespace)


def test_two_operators_stand_by_for_each_other_and_a_drain_takes_one_at_a_time(release, kubectl):
    deployment = kubectl.json("get", "deployment", "inflight-operator", "--namespace", SYSTEM)
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert (deployment["spec"]["replicas"], "--leader-elect" in arguments) == (2, True)
    budget = kubectl.json("get", "poddisruptionbudget", "inflight-operator", "--namespace", SYSTEM)
    assert budget["spec"]["maxUnavailable"] == 1


def test_with_namespaces_the_operator_has_rights_in_these_alone(release, cluster_helm, kubectl, api_server):
    accounts = {"apiVersion": "v1", "kind": "List", "items": []}
    for name in ("apart", "team", "search", "other"):
        accounts["items"].append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    assert kubectl.create(accounts).returncode == 0
    flags = ["--set", "watchNamespaces={team,search},crds.install=false"]
    installed = cluster_helm.run("install", "second", str(CHART), "--namespace", "apart", *flags)
    assert installed.returncode == 0, installed.stderr
    account = "system:serviceaccount:apart:second-operator"

    for namespace, expected in {"team": True, "search": True, "other": False, "apart": False}.items():
        assert api_server.allows(account, "watch", "inferenceservices.inflight.dev", namespace) is expected, namespace
        assert api_server.allows(account, "patch", "secrets", namespace) is expected, namespace
    assert api_server.allows(account, "get", "secrets/second-operator-key", "apart")
    cluster_helm.ok("uninstall", "second", "--namespace", "apart")


def test_upgrade_and_uninstall_leave_custom_resources_and_a_second_install_takes_them_over(
    release, cluster_helm, kubectl
):
    example = str(PROJECT / "examples" / "chat.yaml")
    kubectl.ok("apply", "-f", example)
    uid = kubectl.json("get", "ifsvc", "chat")["metadata"]["uid"]

    cluster_helm.ok("upgrade", "inflight", str(CHART), "--namespace", SYSTEM, "--set", "interval=7")
    deployment = kubectl.json("get", "deployment", "inflight-operator", "--namespace", SYSTEM)
    assert "--interval=7" in deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert deployment["spec"]["replicas"] == 1

    cluster_helm.ok("uninstall", "inflight", "--namespace", SYSTEM)
    assert kubectl.json("get", "ifsvc", "chat")["metadata"]["uid"] == uid
    left = "deployments,services,serviceaccounts,roles,rolebindings,poddisruptionbudgets"
    selector = ["--selector", "app.kubernetes.io/instance=inflight", "--output", "name"]
    assert kubectl.ok("get", left, "--namespace", SYSTEM, *selector) == ""
    policies = "validatingadmissionpolicies,validatingadmissionpolicybindings"
    assert kubectl.ok("get", f"clusterroles,clusterrolebindings,{policies}", *selector) == ""

    cluster_helm.ok("install", "inflight", str(CHART), "--namespace", SYSTEM)
    assert kubectl.json("get", "ifsvc", "chat")["metadata"]["uid"] == uid
    kubectl.ok("delete", "-f", example)
