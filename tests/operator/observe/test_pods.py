"""Pod views from pod objects as the API gives them."""

from datetime import datetime

from inflight_operator.observe.pods import pod_view
from tests.operator.fakes import pod_body


def test_a_running_pod():
    view = pod_view(pod_body("chat-1"))
    assert (view.name, view.uid, view.ip, view.node) == ("chat-1", "uid-chat-1", "10.0.0.1", "node-1")
    assert view.ready
    assert not view.deleting
    assert view.image == "engine:dev"
    created = datetime.fromisoformat("2026-11-20T10:00:00Z").timestamp()
    assert view.created == created


def test_a_pod_that_has_nothing_yet():
    view = pod_view({"metadata": {"name": "chat-1", "uid": "u", "namespace": "team"}})
    assert (view.ip, view.node, view.phase, view.ready, view.exit_code) == ("", "", "Unknown", False, None)


def test_a_pod_on_its_way_out():
    assert pod_view(pod_body("chat-1", deleting=True)).deleting


def test_the_scheduler_s_message_is_kept_only_while_it_finds_no_node():
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    waiting = pod_body("chat-1", ready=False, status={"phase": "Pending", "conditions": [condition]})
    assert pod_view(waiting).unschedulable == "0/1 nodes"
    found = pod_body("chat-1", ready=False, status={"conditions": [{**condition, "status": "True"}]})
    assert pod_view(found).unschedulable == ""


def test_how_the_engine_container_ended_and_why_it_waits():
    ended = {"exitCode": 1, "reason": "Error", "message": "error: no such model"}
    container = {
        "name": "engine",
        "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
        "lastState": {"terminated": ended},
    }
    sidecar = {"name": "a-sidecar", "restartCount": 0, "state": {"running": {}}}
    view = pod_view(pod_body("chat-1", ready=False, status={"containerStatuses": [sidecar, container]}))
    assert (view.restarts, view.waiting_reason, view.exit_code) == (3, "CrashLoopBackOff", 1)
    assert (view.last_reason, view.last_message) == ("Error", "error: no such model")


def test_an_init_container_that_fails_is_why_the_pod_waits():
    engine = {"name": "engine", "restartCount": 0, "state": {"waiting": {"reason": "PodInitializing"}}}
    model = {"name": "inflight-model", "image": "engine:1", "restartCount": 0, "state": {"terminated": {"exitCode": 0}}}
    pull = {"reason": "ImagePullBackOff", "message": "not found"}
    plugin = {"name": "inflight-plugin", "image": "operator:1", "restartCount": 2, "state": {"waiting": pull}}
    status = {"initContainerStatuses": [model, plugin], "containerStatuses": [engine]}
    view = pod_view(pod_body("chat-1", ready=False, status=status))
    assert (view.image, view.waiting_reason, view.restarts) == ("operator:1", "ImagePullBackOff", 2)
    assert view.init_container == "inflight-plugin"
    plugin["state"] = {"running": {}}
    view = pod_view(pod_body("chat-1", ready=False, status=status))
    assert (view.image, view.waiting_reason, view.init_container) == ("engine:dev", "PodInitializing", "")


def test_a_sidecar_that_fails_beside_a_running_engine_is_not_its_state():
    engine = {"name": "engine", "restartCount": 0, "state": {"running": {"startedAt": "2026-11-22T10:00:00Z"}}}
    waits = {"waiting": {"reason": "CrashLoopBackOff"}}
    sidecar = {"name": "mesh", "image": "mesh:1", "restartCount": 9, "state": waits}
    status = {"initContainerStatuses": [sidecar], "containerStatuses": [engine]}
    view = pod_view(pod_body("chat-1", status=status))
    assert (view.image, view.waiting_reason, view.restarts) == ("engine:dev", "", 0)
    assert view.running_since is not None


def test_a_deletion_cost_that_is_no_number_counts_as_unset():
    body = pod_body("chat-1")
    body["metadata"]["annotations"] = {"controller.kubernetes.io/pod-deletion-cost": "7"}
    assert pod_view(body).deletion_cost == 7
    body["metadata"]["annotations"] = {"controller.kubernetes.io/pod-deletion-cost": "many"}
    assert pod_view(body).deletion_cost == 0
