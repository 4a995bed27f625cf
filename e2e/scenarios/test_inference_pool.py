"""Another gateway uses a service: an Envoy in a pod of its own, configured as gateways do it for an InferencePool."""

import json
import time

import httpx

from e2e.disruptions.stage import GATEWAY, system_pods
from e2e.scenarios.conftest import apply
from inflight_base.manifest.pods import condition
from inflight_kubectl.access.cluster import Target
from inflight_kubectl.engines.engine_access import PortForward
from tools.localcluster import kubeconfig_path, kubectl
from tools.testbed.helm import OPERATOR_NAMESPACE
from tools.testbed.other_gateway import BY_HEADER, PICKED, bootstrap
from tools.testbed.service import is_ready

OTHER = "other-gateway"
PORT = 8080
POOL_PORTS = range(20_000, 20_256)
SOON_SECONDS = 30.0


def test_another_gateway_reaches_the_engine_that_the_picker_of_the_services_pool_names(namespace):
    spec = {"scaling": {"minReplicas": 1, "maxReplicas": 1}, "tuning": {"mode": "Off"}}
    service = apply("pooled", namespace, **spec, gateway={"enabled": True, "inferencePool": {"enabled": True}})
    # The operator looks for the API once a minute.
    status = service.wait("its InferencePool", has_pool, seconds=75)
    assert condition(status, "InferencePool")["reason"] == "PoolNotReferenced"

    pool, picker = get(namespace, "inferencepool", "pooled")["spec"], get(namespace, "service", "pooled-picker")["spec"]
    reference, (port,) = pool["endpointPickerRef"], picker["ports"]
    assert (reference["kind"], reference["name"], reference["port"]["number"]) == ("Service", "pooled-picker", 9002)
    assert port["port"] == 9002
    assert port["targetPort"] in POOL_PORTS
    in_time("the picker's endpoints", lambda: endpoints(namespace) == gateway_endpoints(port["targetPort"]))

    start_other_gateway(namespace, f"{picker['clusterIP']}:9002")
    service.wait("Ready", is_ready, seconds=180)
    answer = ask_other_gateway(namespace)
    assert answer.json()["choices"][0]["message"]["content"]
    assert answer.headers[PICKED].split(",") == engines(namespace)

    apply("pooled", namespace, **spec, gateway={"enabled": True})
    in_time("no trace of the pool", lambda: not pool_objects(namespace))


def has_pool(status):
    return condition(status, "InferencePool").get("status") == "True"


def get(namespace, kind, *name):
    return json.loads(kubectl("-n", namespace, "get", kind, *name, "-o", "json"))


def in_time(goal, holds):
    deadline = time.monotonic() + SOON_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"not after {SOON_SECONDS:.0f} s: {goal}"
        time.sleep(0.5)


def endpoints(namespace):
    """Addresses and ports of the picker's Service."""
    slices = get(namespace, "endpointslices", "-l", "kubernetes.io/service-name=pooled-picker")["items"]
    return {
        (address, port["port"])
        for one in slices
        for port in one["ports"]
        for endpoint in one["endpoints"]
        for address in endpoint["addresses"]
    }


def gateway_endpoints(port):
    return {(pod.address, port) for pod in system_pods(GATEWAY)}


def engines(namespace):
    """Addresses of the service's pods, as a picker names them."""
    pods = get(namespace, "pods", "-l", "inflight.dev/service=pooled")["items"]
    return [f"{pod['status']['podIP']}:8000" for pod in pods]


def pool_objects(namespace):
    kinds = "inferencepools,services,endpointslices"
    names = kubectl("-n", namespace, "get", kinds, "-l", "inflight.dev/service=pooled", "-o", "name").split()
    return [name for name in names if name.startswith("inferencepool") or "-picker" in name]


def start_other_gateway(namespace, picker):
    """An Envoy like kgateway's, without a controller that would write its configuration."""
    config = bootstrap(
        PORT,
        picker,
        BY_HEADER,
        name=f"endpointpicker_pooled_{namespace}_ext_proc",
        authority=f"pooled-picker.{namespace}.svc:9002",
        mode="FULL_DUPLEX_STREAMED",
    )
    metadata = {"name": OTHER, "namespace": namespace}
    container = {
        "name": "envoy",
        "image": envoy_image(),
        "imagePullPolicy": "IfNotPresent",
        "command": ["envoy", "-c", "/etc/envoy/envoy.json", "--disable-hot-restart", "--concurrency", "1"],
        "args": ["--log-level", "warning"],
        "volumeMounts": [{"name": "config", "mountPath": "/etc/envoy"}],
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    spec = {
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": [{"name": "config", "configMap": {"name": OTHER}}],
        "containers": [container],
    }
    items = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"envoy.json": json.dumps(config)}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec},
    ]
    kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


def envoy_image():
    """The image in which the release's gateway runs Envoy."""
    containers = get(OPERATOR_NAMESPACE, "deployment", GATEWAY)["spec"]["template"]["spec"]["initContainers"]
    return next(one["image"] for one in containers if one["name"] == "envoy")


def ask_other_gateway(namespace):
    """Returns the gateway's first response with status 200. Before that it may not listen yet, nor the picker at the
    pool's port."""
    kubectl("-n", namespace, "wait", "--for=condition=Ready", f"pod/{OTHER}", "--timeout=60s")
    connection = Target(kubeconfig=str(kubeconfig_path())).connect().connection
    body = {"model": "pooled", "messages": [{"role": "user", "content": "Name a color."}], "max_tokens": 8}
    # The Host does not name the service: it is that of the other gateway's clients.
    headers, last = {"Host": "llm.example.com"}, "no request"
    deadline = time.monotonic() + SOON_SECONDS
    with (
        PortForward(connection, lambda: [(namespace, OTHER, PORT)]) as forward,
        forward.client(timeout=60, headers=headers) as http,
    ):
        while time.monotonic() < deadline:
            try:
                answer = http.post("/v1/chat/completions", json=body)
            except httpx.HTTPError as error:
                last = f"{type(error).__name__}: {error}"
            else:
                if answer.status_code == httpx.codes.OK:
                    return answer
                last = f"{answer.status_code} {answer.text}"
            time.sleep(0.5)
    raise AssertionError(f"no answer through the other gateway: {last}")
