import pytest

from inflight_kubectl.access.pods import Pod
from inflight_kubectl.access.resources import Service
from tests.kubectl.objects import body, condition, pod, pod_body, service


@pytest.mark.parametrize(
    ("conditions", "state"),
    [
        ([], "Unknown"),
        ([condition("Ready")], "Ready"),
        ([condition("Ready", reason="Unschedulable", message="1 of 2")], "Degraded"),
        ([condition("Ready"), condition("Progressing", "True", "RollingOut")], "Updating"),
        ([condition("Ready"), condition("Progressing", "False", "ProgressDeadlineExceeded")], "Degraded"),
        ([condition("Ready", "False", "Loading")], "Starting"),
        ([condition("Ready", "False", "Starting"), condition("Progressing", "False", "ApplyFailed")], "Failing"),
        ([condition("Ready", "False", "ImagePullFailed")], "Failing"),
        ([condition("Ready", "False", "ScaledToZero")], "Stopped"),
        ([condition("Ready", reason="Asleep")], "Asleep"),
        ([condition("Ready", reason="Asleep"), condition("Progressing", "True", "RollingOut")], "Updating"),
    ],
)
def test_the_state_follows_the_conditions(conditions, state):
    assert service(conditions=conditions).state == state


def test_in_mode_external_the_spec_orders_replicas():
    external = {"scaling": {"mode": "External"}, "replicas": 5}
    assert Service.of(body(spec=external, desiredReplicas=2)).ordered == 5
    assert service(desiredReplicas=2).ordered == 2


def test_a_service_that_the_operator_has_not_seen_can_be_read():
    bare = {"metadata": {"name": "new", "namespace": "default"}, "spec": {"model": {"source": "builtin://smollm2"}}}
    found = Service.of(bare)
    assert (found.state, found.limits, found.observed, found.blocked) == ("Unknown", None, None, None)
    assert (found.ttft_target, found.tpot_target, found.has_slo) == (0.5, 0.05, False)


@pytest.mark.parametrize(("text", "target"), [("1m30s", 90.0), ("1.5s", 1.5), (None, 0.5), ("", 0.5), ("soon", 0.5)])
def test_an_unreadable_target_is_the_default(text, target):
    assert service(spec={"slo": {"ttftP95": text}}).ttft_target == target


def test_a_pod_that_waits_for_a_node_says_what_the_scheduler_said():
    waiting = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    found = pod(ready=False, node="", phase="Pending", conditions=[waiting], containerStatuses=[])
    assert (found.state, found.detail, found.node) == ("Pending", "0/1 nodes", "")


def test_a_pod_whose_init_container_fails_shows_why():
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    found = pod(
        ready=False,
        initContainerStatuses=[{"name": "inflight-plugin", "restartCount": 0, "state": waiting}],
        containerStatuses=[{"name": "engine", "restartCount": 0, "state": {"waiting": {"reason": "PodInitializing"}}}],
    )
    assert (found.state, found.detail) == ("ImagePullBackOff", "no such image")


def test_a_pod_that_crashes_shows_its_last_words():
    statuses = [
        {
            "name": "engine",
            "restartCount": 3,
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
            "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "message": "x\nerror: no such model\n"}},
        }
    ]
    found = pod(ready=False, containerStatuses=statuses)
    assert found.state == "CrashLoopBackOff"
    assert found.detail == "back-off 40s; last exit code 1 (Error): error: no such model"
    assert found.restarts == 3


def test_a_pod_being_removed_does_not_serve():
    leaving = pod_body()
    leaving["metadata"]["deletionTimestamp"] = "2026-05-04T12:00:00Z"
    assert Pod.of(leaving).state == "Terminating"
    assert not Pod.of(leaving).serves


def test_ports_come_from_the_container():
    assert (pod().http_port, pod().admin_port) == (8000, 8001)
