"""A service of type vllm: started by the operator, and through every disruption behind the gateway."""

import json
import re

import pytest

from e2e.disruptions import table
from e2e.disruptions.phases import PHASES
from e2e.disruptions.run import run_phase
from e2e.disruptions.stage import REPLICAS, Stage, replicas, specification
from inflight_base.manifest.pods import condition
from tools.localcluster import kubectl
from tools.measure.report import say
from tools.testbed.load_pod import ask_pod, driver_pod
from tools.testbed.service import Service, is_ready

pytestmark = pytest.mark.timeout(2400)

START_SECONDS = 900
"""Longest wait for pods: two start beside traffic on the same cores, and one alone takes half a minute."""
TRAFFIC_SECONDS = 30
DISRUPTIONS = (
    "engine-killed", "pod-killed", "pod-deleted", "scale-out", "scale-in", "rollout-surge-first", "limits-changed",
)  # fmt: skip


@pytest.fixture(scope="module")
def engine(vllm_image):
    engine = {"type": "vllm", "image": vllm_image, "maxNumSeqs": 16, "maxNumBatchedTokens": 512, "maxModelLen": 1024}
    return {**engine, "extraArgs": ["--enforce-eager"]}


@pytest.fixture(scope="module")
def stage(namespace, client_image, engine):
    spec = {"engine": engine}
    stage = Stage(Service("chat", namespace), client_image, say, gateway=True, spec=spec, wait_seconds=START_SECONDS)
    yield stage
    kubectl("-n", namespace, "delete", "inferenceservice", "chat", "--wait=false")


def answer(service, name, image):
    with ask_pod(service, name, "What are the colors of the rainbow?", image=image) as pod:
        said = "".join(pod.follow())
        assert pod.exit_code() == 0, said
    return said


def running(service, pod):
    """The number that vLLM itself counts."""
    page = kubectl("get", "--raw", f"/api/v1/namespaces/{service.namespace}/pods/{pod.name}:8000/proxy/metrics")
    return float(re.search(r"^vllm:num_requests_running{.*} (\S+)$", page, re.MULTILINE)[1])


def test_it_becomes_ready_and_answers_by_its_name(stage):
    stage.apply(scaling=replicas(1), gateway={"enabled": False})
    stage.service.wait("Ready", is_ready, seconds=START_SECONDS, saying=say)
    assert "rainbow" in answer(stage.service, "ask", stage.image).lower()


def test_limits_move_while_requests_run_and_vllm_runs_as_many(stage):
    """The same process with 2, then 12 requests at once, as vLLM counts them."""

    def limited(number):
        tuning = {"mode": "Off", "override": {"maxNumSeqs": number, "until": "2100-01-01T00:00:00Z"}}
        stage.apply(scaling=replicas(1), gateway={"enabled": False}, tuning=tuning)

    def has_two_slots(status):
        return is_ready(status) and status.get("limits", {}).get("maxNumSeqs") == 2

    limited(2)
    service = stage.service
    service.wait("Ready", has_two_slots, seconds=START_SECONDS)
    (pod,) = service.pods()
    arguments = ["--clients=16", "--requests=100000", "--seconds=90", "--max-tokens=60", "--prompt-words=20"]
    with driver_pod(service, "limits", arguments, image=stage.image) as load:
        service.wait("two running requests", lambda _: running(service, pod) == 2, seconds=60, interval=0.3)
        low = [running(service, pod) for _ in range(10)]
        limited(12)
        service.wait("twelve running requests", lambda _: running(service, pod) == 12, seconds=60, interval=0.3)
        closing = json.loads("".join(load.follow()).strip().splitlines()[-1])
    assert max(low) <= 2
    assert [(one.uid, one.restarts) for one in service.pods()] == [(pod.uid, 0)]
    assert closing["lost"] == {}
    assert closing["answered"] == closing["sent"] > 0


def test_a_version_that_the_plugin_does_not_know_serves_on_and_pod_and_service_say_so(namespace, client_image, engine):
    """The distribution that Python finds first is vLLM 9.9.9+cpu; without the suffix vLLM would look for a GPU."""
    content = {"METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 9.9.9+cpu\n"}
    files = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "newer", "namespace": namespace}}
    kubectl("apply", "-f", "-", input=json.dumps(files | {"data": content}))
    folder = {"name": "newer", "items": [{"key": "METADATA", "path": "vllm-9.9.9+cpu.dist-info/METADATA"}]}
    template = {
        "volumes": [{"name": "newer", "configMap": folder}],
        "volumeMounts": [{"name": "newer", "mountPath": "/opt/newer", "readOnly": True}],
        "env": [{"name": "PYTHONPATH", "value": "/opt/newer:/opt/inflight/vllm"}],
    }
    service = Service("newer", namespace)
    service.apply(specification(engine=engine, scaling=replicas(1), tuning={"mode": "Auto"}, template=template))

    def tuning(status):
        return condition(status, "TuningActive")

    status = service.wait(
        "Ready, with a reason why its limits are not tuned",
        lambda status: is_ready(status) and tuning(status).get("reason") == "PluginUnsupported",
        seconds=START_SECONDS,
        saying=say,
    )
    reason = "vLLM 9.9.9+cpu is not one that this plugin was tested with"
    assert tuning(status)["status"] == "False"
    assert reason in tuning(status)["message"]
    assert "rainbow" in answer(service, "ask-newer", client_image).lower()
    (pod,) = service.pods()
    assert pod.restarts == 0
    assert reason in kubectl("-n", namespace, "logs", pod.name, "-c", "engine")
    kubectl("-n", namespace, "delete", "inferenceservice", service.name, "--wait=false")


@pytest.fixture(scope="module")
def at_start(stage):
    stage.settle()


@pytest.mark.parametrize("name", DISRUPTIONS)
def test_behind_the_gateway_no_request_is_lost(stage, at_start, name):
    outcome = run_phase(PHASES[name], stage, TRAFFIC_SECONDS)
    if outcome.skipped:
        pytest.skip(outcome.note)
    say(table.text([outcome]))
    assert outcome.problems == (), table.text([outcome])


def test_behind_the_gateway_its_name_answers(stage, at_start):
    assert len(stage.ready_pods()) == REPLICAS
    assert "rainbow" in answer(stage.service, "ask-gateway", stage.image).lower()


def test_requests_wake_it_from_zero_and_are_all_answered(stage, at_start):
    stage.apply(
        scaling={"minReplicas": 0, "maxReplicas": 1, "idleTimeout": "10s"},
        gateway={"enabled": True, "hold": {"maxWait": "600s"}},
    )
    service = stage.service
    service.wait("no replica", lambda status: not status.get("replicas") and not service.pods(), seconds=START_SECONDS)
    arguments = ["--clients=10", "--requests=10", "--max-tokens=8", "--prompt-words=20", "--new-connections"]
    with driver_pod(service, "wake", [*arguments, "--patience=600"], image=stage.image) as pod:
        closing = json.loads("".join(pod.follow()).strip().splitlines()[-1])
    say(f"from zero: {closing['answered']} of {closing['sent']} answered, longest wait {closing['longest_wait']} s")
    assert closing["lost"] == {}
    assert closing["answered"] == closing["sent"] == 10
