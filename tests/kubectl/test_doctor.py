"""The checks, on a stand-in for the cluster that answers from a table of paths."""

import base64
import json
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner

from inflight_kubectl.access import kubeconfig
from inflight_kubectl.access.api_problems import ApiProblem, UnreachableProblem
from inflight_kubectl.access.cluster import Cluster, Target
from inflight_kubectl.doctor import installation
from inflight_kubectl.doctor.monitoring import matches, selects
from inflight_kubectl.doctor.run import examine
from tests.kubectl.objects import body, event, pod_body

GROUP = "/apis/inflight.dev/v1alpha1"
OPERATOR = "inflight-system/inflight-operator"


class Connection:
    """Stands in for a connection: answers by path; an answer that is an exception is raised."""

    context, namespace, host = "test", "default", "https://api.test"

    def __init__(self, answers):
        self.answers = answers

    def request(self, method, path, *, query=None, body=None, **_):
        if path.endswith("accessreviews"):
            attributes = body["spec"]["resourceAttributes"]
            refused = self.answers.get("refused", ())
            whose = "operator" if "user" in body["spec"] else "caller"
            return {"status": {"allowed": (whose, attributes["verb"], attributes["resource"]) not in refused}}
        answer = self.answers.get(path)
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            missing = "details" in self.answers or "/leases/" in path or "customresourcedefinitions/" in path
            raise ApiProblem("the API server answers 404: not found", "", 404, "NotFound", missing or "claims/" in path)
        return answer


def version(minor="36"):
    return {"major": "1", "minor": minor, "gitVersion": f"v1.{minor}.0"}


def crd(fields=tuple(installation._STATUS_FIELDS)):
    status = {"properties": {field: {} for field in fields}}
    schema = {"openAPIV3Schema": {"properties": {"status": status}}}
    return {"spec": {"versions": [{"name": "v1alpha1", "served": True, "schema": schema}]}}


def operator(available=1, args=("--leader-elect", "--lease-name=inflight-operator")):
    return {
        "metadata": {
            "name": "inflight-operator",
            "namespace": "inflight-system",
            "labels": {"app.kubernetes.io/version": installation.package_version("inflight")},
        },
        "spec": {
            "replicas": 1,
            "template": {"spec": {"serviceAccountName": "operator", "containers": [{"args": list(args)}]}},
        },
        "status": {"availableReplicas": available},
    }


def lease(seconds=2, holder="operator-1"):
    renewed = (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()
    return {"spec": {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15}}


def items(*found):
    return {"items": list(found)}


def well(**changed):
    """Returns the answers of a cluster without a problem."""
    answers = {
        "/version": version(),
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/inferenceservices.inflight.dev": crd(),
        "/apis/apps/v1/deployments": items(operator()),
        "/api/v1/namespaces/inflight-system/pods": items(),
        "/apis/coordination.k8s.io/v1/namespaces/inflight-system/leases/inflight-operator": lease(),
        "/apis/authentication.k8s.io/v1/selfsubjectreviews": {"status": {"userInfo": {"username": "jane"}}},
        "/apis/monitoring.coreos.com/v1": {},
        "/apis/monitoring.coreos.com/v1/prometheuses": items(prometheus({}, {})),
        "/apis/monitoring.coreos.com/v1/podmonitors": items(monitor()),
        "/apis/monitoring.coreos.com/v1/servicemonitors": items(),
        "/api/v1/namespaces": items({"metadata": {"name": "default"}}, {"metadata": {"name": "monitoring"}}),
        "/api/v1/nodes": items({"status": {"allocatable": {"nvidia.com/gpu": "8"}}}),
        "/api/v1/namespaces/default/pods": items(pod_body()),
        "/api/v1/namespaces/default/events": items(),
        f"{GROUP}/namespaces/default/inferenceservices": items(body()),
        "/apis/storage.k8s.io/v1/storageclasses": items({"metadata": {"name": "slow"}}),
    }
    return answers | changed


def prometheus(selector, namespaces):
    spec = {"podMonitorSelector": selector, "podMonitorNamespaceSelector": namespaces}
    return {"metadata": {"name": "k8s", "namespace": "monitoring"}, "spec": spec}


def monitor(labels=None):
    return {"metadata": {"name": "chat", "namespace": "default", "labels": labels or {}}}


def found(answers):
    return list(examine(Cluster(Connection(answers), Target())))


def only(answers, level):
    return [one for one in found(answers) if one.level == level]


def test_a_cluster_where_all_is_well_has_no_remedy():
    results = found(well())
    assert {one.level for one in results} == {"ok"}
    assert not any(one.remedy for one in results)


def test_thousands_of_devices_of_a_node_are_read_as_kubernetes_writes_them():
    nodes = items({"status": {"allocatable": {"nvidia.com/gpu": "2k"}}})
    assert any("2000 nvidia.com/gpu" in one.found for one in found(well(**{"/api/v1/nodes": nodes})))


@pytest.mark.parametrize(
    ("changed", "check", "words", "remedy"),
    [
        ({"/version": version("29")}, "cluster", "v1.29.0", "1.30 or newer"),
        (
            {"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/inferenceservices.inflight.dev": None},
            "crd",
            "is not installed",
            "helm install inflight",
        ),
        ({"/apis/apps/v1/deployments": items()}, "operator", "is not installed", "helm install inflight"),
        ({"/apis/apps/v1/deployments": items(operator(0))}, "operator", "no ready pod", "describe pods"),
        (
            {"/apis/coordination.k8s.io/v1/namespaces/inflight-system/leases/inflight-operator": lease(300)},
            "leader",
            "has not renewed the Lease",
            "kubectl -n inflight-system logs deploy/inflight-operator",
        ),
        (
            {"/apis/coordination.k8s.io/v1/namespaces/inflight-system/leases/inflight-operator": lease(holder="")},
            "leader",
            "nobody holds the Lease",
            "logs deploy/inflight-operator",
        ),
        (
            {"refused": [("caller", "list", "inferenceservices")]},
            "your reading rights",
            "you may not list inferenceservices.inflight.dev",
            "kubectl -n default create rolebinding inflight-view-jane --clusterrole=view --user=jane",
        ),
        (
            {"refused": [("operator", "patch", "deployments")]},
            "operator's rights",
            "may not patch deployments.apps",
            "rbac.create=true",
        ),
        ({"/api/v1/nodes": items()}, "accelerators", "no node has nvidia.com/gpu", "helm install gpu-operator"),
    ],
)
def test_what_stops_services_fails_with_the_command_that_mends_it(changed, check, words, remedy):
    (failed,) = only(well(**changed), "fail")
    assert failed.check == check
    assert words in failed.found
    assert remedy in failed.remedy


@pytest.mark.parametrize(
    ("changed", "check", "words", "remedy"),
    [
        (
            {"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/inferenceservices.inflight.dev": crd(["limits"])},
            "crd",
            "older than this program",
            "kubectl apply --server-side",
        ),
        (
            {"refused": [("caller", "create", "pods")]},
            "your port-forward rights",
            "pods/portforward",
            "clusterrole=edit",
        ),
        (
            {"refused": [("caller", "patch", "inferenceservices")]},
            "your rights to set limits",
            "may not patch inferenceservices.inflight.dev",
            "clusterrole=edit",
        ),
        ({"/apis/monitoring.coreos.com/v1": None}, "prometheus", "no Prometheus operator", "helm install monitoring"),
        (
            {"/apis/monitoring.coreos.com/v1/prometheuses": items(prometheus({"matchLabels": {"release": "x"}}, {}))},
            "prometheus",
            "no Prometheus selects 1 of 1 monitors, such as default/chat",
            "kubectl -n monitoring patch prometheus k8s",
        ),
        (
            {"/api/v1/nodes": ApiProblem("forbidden: cannot list nodes", "Ask", 403, "Forbidden")},
            "accelerators",
            "not checked: forbidden",
            "Ask",
        ),
    ],
)
def test_what_services_can_do_without_is_a_warning(changed, check, words, remedy):
    (warning,) = only(well(**changed), "warn")
    assert warning.check == check
    assert words in warning.found
    assert remedy in warning.remedy


@pytest.mark.parametrize(
    ("operators", "remedy"),
    [
        ("0.0.1", "helm upgrade mine helm/inflight -n apps --reset-then-reuse-values"),
        ("99.10.0", "git checkout v99.10.0 && pip install '.[kubectl]'"),
    ],
)
def test_of_two_versions_the_older_one_is_to_be_upgraded(operators, remedy):
    other = operator()
    other["metadata"]["labels"]["app.kubernetes.io/version"] = operators
    other["metadata"]["annotations"] = {"meta.helm.sh/release-name": "mine", "meta.helm.sh/release-namespace": "apps"}
    (warning,) = only(well(**{"/apis/apps/v1/deployments": items(other)}), "warn")
    assert warning.remedy == remedy


def test_leader_election_is_on_unless_a_flag_says_otherwise():
    held = {"/apis/coordination.k8s.io/v1/namespaces/inflight-system/leases/inflight-operator": lease(holder="")}
    assert only(well(**held | {"/apis/apps/v1/deployments": items(operator(args=()))}), "fail")
    assert not only(well(**held | {"/apis/apps/v1/deployments": items(operator(args=("--no-leader-elect",)))}), "fail")


def test_an_operator_that_restarts_is_a_warning():
    ended = {"reason": "OOMKilled", "finishedAt": datetime.now(UTC).isoformat()}
    status = {"containerStatuses": [{"restartCount": 4, "lastState": {"terminated": ended}}]}
    restarted = {"metadata": {"name": "operator-1"}, "status": status}
    (warning,) = only(well(**{"/api/v1/namespaces/inflight-system/pods": items(restarted)}), "warn")
    assert "restarted 4 times, last OOMKilled" in warning.found
    assert warning.remedy == "kubectl -n inflight-system logs operator-1 --previous"


def test_an_image_that_cannot_be_pulled_fails_and_names_the_pod():
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image engine:none"}
    bad = pod_body(ready=False, containerStatuses=[{"name": "engine", "state": {"waiting": waiting}}])
    bad["metadata"]["labels"] = {"inflight.dev/service": "chat"}
    (failed,) = only(well(**{"/api/v1/namespaces/default/pods": items(bad)}), "fail")
    assert failed.found == "chat-1 cannot pull its image: Back-off pulling image engine:none"
    assert failed.remedy.startswith("kubectl -n default patch ifsvc chat --type merge -p ")
    json.loads(failed.remedy.partition("-p ")[2].strip("'"))


@pytest.mark.parametrize(
    ("container", "image", "value"),
    [
        ("inflight-plugin", "the operator's image, which brings the plugin for vLLM", "image.repository"),
        ("inflight-model", "Inflight's engine image, which has the built-in model", "engine.image.repository"),
    ],
)
def test_an_image_of_an_init_container_is_changed_in_the_chart(container, image, value):
    waiting = {"reason": "ErrImagePull", "message": "not found"}
    bad = pod_body(ready=False, initContainerStatuses=[{"name": container, "state": {"waiting": waiting}}])
    bad["metadata"]["labels"] = {"inflight.dev/service": "chat"}
    installed = operator()
    installed["metadata"]["labels"]["app.kubernetes.io/instance"] = "mine"
    answers = {"/api/v1/namespaces/default/pods": items(bad), "/apis/apps/v1/deployments": items(installed)}
    (failed,) = only(well(**answers), "fail")
    assert failed.found == f"chat-1 cannot pull {image}: not found"
    assert failed.remedy == (
        f"helm upgrade mine helm/inflight -n inflight-system --reset-then-reuse-values --set {value}=REPOSITORY"
    )


def test_an_image_that_failed_lately_is_a_warning():
    failed = event(reason="Failed", message="Failed to pull image", kind="Warning")
    failed["lastTimestamp"] = datetime.now(UTC).isoformat()
    (warning,) = only(well(**{"/api/v1/namespaces/default/events": items(failed)}), "warn")
    assert warning.check == "images"


def claimed(spec, phase="Pending"):
    service = body(spec={"model": {"source": "pvc://models/qwen"}, "accelerator": {"count": 0}})
    return well(
        **{
            f"{GROUP}/namespaces/default/inferenceservices": items(service),
            "/api/v1/namespaces/default/persistentvolumeclaims/models": {"spec": spec, "status": {"phase": phase}},
        }
    )


def test_a_claim_without_a_class_needs_a_default_one():
    (failed,) = only(claimed({}), "fail")
    assert "there is no default one" in failed.found
    assert failed.remedy.startswith("kubectl patch storageclass slow -p ")
    assert not only(claimed({}, "Bound"), "fail")


@pytest.mark.parametrize(("minor", "failed"), [("34", 1), ("35", 0), ("36+", 0)])
def test_a_cluster_without_image_volumes_fails_where_a_service_needs_them(minor, failed):
    service = body(spec={"model": {"source": "oci://registry/qwen:1"}, "accelerator": {"count": 0}})
    services = {f"{GROUP}/namespaces/default/inferenceservices": items(service)}
    problems = only(well(**services, **{"/version": version(minor)}), "fail")
    assert len(problems) == failed
    if failed:
        assert problems[0].check == "image volumes"
        assert problems[0].found.startswith("Kubernetes v1.34.0 has no image volumes by default, which the model of ")
        assert not any(one.check == "image volumes" for one in found(well(**{"/version": version(minor)})))


def test_a_claim_that_does_not_exist_fails():
    answers = claimed({})
    del answers["/api/v1/namespaces/default/persistentvolumeclaims/models"]
    (failed,) = only(answers, "fail")
    assert failed.found == "the claim default/models does not exist"


def test_without_an_api_server_nothing_else_is_checked():
    (only_one,) = found({"/version": UnreachableProblem("the API server does not answer", "Start it")})
    assert (only_one.level, only_one.remedy) == ("fail", "Start it")


def test_the_exit_code_is_1_when_a_check_fails(monkeypatch):
    from inflight_kubectl.commands.doctor import COMMAND

    monkeypatch.setattr(kubeconfig, "connect", lambda *_: Connection(well()))
    done = CliRunner().invoke(COMMAND, [])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("ok    cluster: ")
    monkeypatch.setattr(kubeconfig, "connect", lambda *_: Connection(well(**{"/apis/apps/v1/deployments": items()})))
    done = CliRunner().invoke(COMMAND, ["--json"])
    assert done.exit_code == 1
    assert [one["check"] for one in json.loads(done.output) if one["level"] == "fail"] == ["operator"]


LABELS = {"app": "x", "tier": "gpu"}


@pytest.mark.parametrize(
    ("selector", "holds"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"app": "x"}}, True),
        ({"matchLabels": {"app": "y"}}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["gpu"]}]}, True),
        ({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["gpu"]}]}, False),
        ({"matchExpressions": [{"key": "none", "operator": "DoesNotExist"}]}, True),
        ({"matchExpressions": [{"key": "none", "operator": "Exists"}]}, False),
    ],
)
def test_label_selectors_match_as_kubernetes_matches(selector, holds):
    assert matches(selector, LABELS) is holds


def test_without_a_namespace_selector_a_prometheus_looks_in_its_own_namespace():
    server = prometheus({}, None)
    assert not selects(server, "podmonitors", monitor(), {"default": {}})


def behind_the_gateway(ready=True, keys=None, **changed):
    """Returns the answers of a cluster with one service behind the gateway. Args: keys: data of its Secret; None
    without one."""
    gateway = {"gateway": {"enabled": True, "auth": {"apiKeysSecret": "chat-keys"}}}
    pod = pod_body("inflight-gateway-1", "inflight-system", ready=ready)
    host = "inflight-gateway.inflight-system.svc.cluster.local"
    front = {"metadata": {"annotations": {"inflight.dev/gateway": host}}}
    secret = {} if keys is None else {"/api/v1/namespaces/default/secrets/chat-keys": {"data": keys}}
    return well(
        **{
            f"{GROUP}/namespaces/default/inferenceservices": items(body(spec=gateway)),
            "/api/v1/namespaces/inflight-system/pods": items(pod),
            "/api/v1/namespaces/default/services/chat": front,
            "details": True,
        }
        | secret
        | changed
    )


def stored_key(text=None):
    value = text or json.dumps({"tenant": "acme", "sha256": "0" * 64})
    return base64.b64encode(value.encode()).decode()


def test_a_gateway_with_keys_is_well():
    said = {one.check: one for one in found(behind_the_gateway(keys={"k": stored_key()}))}
    assert (said["gateway"].level, said["gateway"].found) == ("ok", "1 ready pod for 1 service")
    assert said["API keys of default/chat"].level == "ok"
    assert said["your rights to manage API keys"].level == "ok"


@pytest.mark.parametrize(
    ("answers", "level", "words", "remedy"),
    [
        (
            behind_the_gateway(ready=False, keys={"k": stored_key()}),
            "fail",
            "no gateway pod is ready",
            "gateway.enabled",
        ),
        (behind_the_gateway(), "fail", "has no valid key", "keys create chat --tenant NAME -n default"),
        (
            behind_the_gateway(keys={"a": stored_key(), "b": stored_key("{")}),
            "warn",
            "entries of Secret chat-keys: b",
            "",
        ),
        (
            behind_the_gateway(keys={"k": stored_key()}, refused={("caller", "patch", "secrets")}),
            "warn",
            "you may not patch secrets",
            "rolebinding",
        ),
    ],
    ids=["no pod", "no key", "malformed", "no rights"],
)
def test_what_is_wrong_with_the_gateway_is_found(answers, level, words, remedy):
    (one,) = [one for one in only(answers, level) if words in one.found]
    assert remedy in one.remedy


def test_services_that_may_not_be_listed_hide_no_other_right():
    forbidden = ApiProblem("forbidden: no", "ask", 403, "Forbidden")
    said = found(well(**{f"{GROUP}/namespaces/default/inferenceservices": forbidden}))
    assert any(one.check == "your rights to set limits" and one.level == "ok" for one in said)
