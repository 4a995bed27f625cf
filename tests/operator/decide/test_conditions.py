"""Conditions and their sentences, for each state of a service."""

from dataclasses import replace

import pytest

from inflight_operator.decide.replicas.start_up import StartUps
from inflight_operator.decide.status.conditions import (
    DeploymentView,
    Finding,
    Metrics,
    find_conditions,
    resting,
    summarized,
    uncached,
)
from inflight_operator.decide.status.pod_problems import ServiceFacts, pod_problem
from inflight_operator.decide.status.pods import Pods, classify
from inflight_operator.observe.pods import pod_view
from tests.operator.fakes import pod_body

NOW = 1763632800.0 + 60
FACTS = ServiceFacts("hf://Qwen/Qwen3-8B", "nvidia.com/gpu", "4Gi")
OTHERS = (Finding("ScalingActive", "True", "AsDesired", "fine"), Finding("TuningActive", "True", "InDeadBand", "fine"))


def found(pods, *, wanted=2, deployment=None, metrics=None, facts=FACTS, routed=True):
    deployment = deployment or DeploymentView(wanted, wanted, wanted, True, "")
    metrics = metrics or Metrics(0, 0, "")
    classified = classify(pods, facts, StartUps(), 1800.0, NOW)
    return {one.type: one for one in find_conditions(facts.source, deployment, classified, routed, metrics, *OTHERS)}


def container(**state):
    return {"containerStatuses": [{"name": "engine", "restartCount": state.pop("restarts", 0), **state}]}


def pod(name="chat-1", **status):
    return pod_view(pod_body(name, ready=False, status=status))


def unschedulable(message):
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    body = pod_body("chat-2", ready=False, status={"phase": "Pending", "conditions": [condition]})
    body["spec"].pop("nodeName")
    body["status"].pop("containerStatuses")
    return pod_view(body)


READY = pod_view(pod_body("chat-1"))
NO_GPU = (
    "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. no new claims to deallocate, "
    "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
)


def test_all_well():
    conditions = found([READY], wanted=1, metrics=Metrics(1, 1, ""))
    assert (conditions["Ready"].status, conditions["Ready"].reason) == ("True", "Serving")
    assert conditions["Progressing"].message == "1 pod ready, all of the newest template"
    assert conditions["MetricsAvailable"].status == "True"
    assert list(conditions) == [
        "Ready",
        "Scheduled",
        "ModelLoaded",
        "Progressing",
        "MetricsAvailable",
        "ScalingActive",
        "TuningActive",
    ]


def test_a_pod_that_waits_for_an_accelerator():
    conditions = found([READY, unschedulable(NO_GPU)])
    sentence = (
        "1 of 2 pods waits for nvidia.com/gpu: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu;"
        " add a node that has it or set accelerator.count: 0"
    )
    assert (conditions["Scheduled"].status, conditions["Scheduled"].message) == ("False", sentence)
    assert conditions["Ready"].status == "True"
    assert conditions["Ready"].message == f"1 of 2 replicas takes requests; {sentence}"


def test_a_pod_that_waits_for_memory_is_not_advised_to_go_without_accelerator():
    problem = pod_problem(unschedulable("0/3 nodes are available: 3 Insufficient memory."), FACTS)
    assert problem.text.startswith("waits for memory: 0/3 nodes are available: 3 Insufficient memory; add a node or")


def gated(*gates):
    body = pod_body("chat-2", ready=False, status={"phase": "Pending"})
    body["spec"] = {**body["spec"], "nodeName": "", "schedulingGates": [{"name": gate} for gate in gates]}
    body["status"].pop("containerStatuses")
    return pod_view(body)


def test_a_pod_at_a_scheduling_gate_names_it_and_that_of_kueue_says_what_it_waits_for():
    problem = pod_problem(gated("kueue.x-k8s.io/admission"), FACTS)
    assert (problem.reason, problem.stage) == ("SchedulingGated", "schedule")
    said = "is not scheduled before kueue.x-k8s.io/admission is removed"
    assert problem.text == f"{said}; its queue of Kueue has no quota for it"
    assert pod_problem(gated("a.example/b", "c"), FACTS).text == "is not scheduled before a.example/b and c is removed"
    conditions = found([READY, gated("a.example/b")])
    assert (conditions["Scheduled"].status, conditions["Scheduled"].reason) == ("False", "SchedulingGated")


@pytest.mark.parametrize(
    ("deployment", "added"),
    [
        (DeploymentView(1, 1, 1, True, ""), set()),
        (DeploymentView(1, 0, 1, True, ""), {"Reconciling"}),
        (DeploymentView(2, 2, 2, True, ""), {"Reconciling"}),
        (DeploymentView(1, 0, 2, True, "timed out"), {"Stalled"}),
        (DeploymentView(1, 0, 1, True, "", "exceeded quota"), {"Stalled"}),
    ],
)
def test_a_rollout_is_reconciling_or_stalled_and_never_both(deployment, added):
    findings = found([READY], deployment=deployment)
    assert {one.type for one in summarized(tuple(findings.values()))} - findings.keys() == added


def test_a_claim_that_does_not_exist():
    problem = pod_problem(unschedulable('0/1 nodes are available: persistentvolumeclaim "models" not found.'), FACTS)
    assert problem.reason == "ClaimNotFound"
    assert 'persistentvolumeclaim "models" not found; create the claim' in problem.text


def test_a_claim_of_the_model_cache_that_does_not_exist_or_has_no_volume():
    facts = replace(FACTS, cache_claim="cache")
    problem = pod_problem(unschedulable('0/1 nodes are available: persistentvolumeclaim "cache" not found.'), facts)
    assert problem.reason == "ClaimNotFound"
    assert "create the claim or take the namespace out of engine.modelCache.namespaces" in problem.text
    other = pod_problem(unschedulable('0/1 nodes are available: persistentvolumeclaim "models" not found.'), facts)
    assert "or correct model.source" in other.text
    unbound = unschedulable("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found")
    problem = pod_problem(unbound, facts)
    assert problem.reason == "ClaimNotBound"
    assert "see why the claim cache of the model cache has no volume" in problem.text


def test_a_folder_of_the_model_cache_that_cannot_be_written():
    said = 'failed to create subPath directory for volumeMount "inflight-model-cache" of container "engine"'
    waiting = {"waiting": {"reason": "CreateContainerConfigError", "message": said}}
    problem = pod_problem(pod(phase="Pending", **container(state=waiting)), FACTS)
    assert problem.text.endswith("engine.modelCache.hostPath of the chart must be a folder of the node with mode 0777")


def test_pods_that_did_not_use_the_model_cache_say_why_and_are_loaded_nevertheless():
    conditions = tuple(found([READY], wanted=1, metrics=Metrics(1, 1, "")).values())
    assert uncached(conditions, [], 1) == conditions
    loaded = next(one for one in uncached(conditions, ["its disk is full"], 2) if one.type == "ModelLoaded")
    assert loaded.status == "True"
    assert loaded.message.endswith("is loaded in 1 pod; 1 of 2 pods did not use the model cache: its disk is full")


def test_no_node_for_another_reason():
    problem = pod_problem(unschedulable("0/1 nodes are available: 1 node(s) had untolerated taint {a: b}."), FACTS)
    assert problem.text.endswith("check template.nodeSelector, tolerations and affinity")


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff", "InvalidImageName"])
def test_an_image_that_cannot_be_pulled(reason):
    waiting = {"waiting": {"reason": reason, "message": "failed to resolve image:\n not found"}}
    conditions = found([pod(phase="Pending", **container(state=waiting))], wanted=1)
    assert (conditions["Ready"].status, conditions["Ready"].reason) == ("False", "ImagePullFailed")
    assert conditions["Ready"].message == (
        "1 of 1 pod cannot pull image engine:dev: failed to resolve image: not found;"
        " correct engine.image, or give template.imagePullSecrets"
    )
    assert conditions["ModelLoaded"].status == "Unknown"


def test_an_image_of_a_model_that_cannot_be_pulled():
    said = 'failed to pull image "registry/qwen:1": not found'
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": said}}
    facts = replace(FACTS, source="oci://registry/qwen:1")
    problem = pod_problem(pod(phase="Pending", **container(state=waiting)), facts)
    assert problem.reason == "ImagePullFailed"
    assert problem.text == (
        f"cannot pull the model's image: {said}; correct model.source, or give template.imagePullSecrets"
    )


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff", "InvalidImageName"])
@pytest.mark.parametrize(
    ("name", "purpose", "value"),
    [
        ("inflight-plugin", "brings Inflight's plugin for vLLM", "(chart values image.repository and image.tag)"),
        ("inflight-model", "writes the built-in model", "(chart values engine.image.repository and engine.image.tag)"),
    ],
)
def test_an_image_of_an_init_container_that_cannot_be_pulled_says_what_it_is_for_and_where_it_is_set(
    reason, name, purpose, value
):
    waiting = {"waiting": {"reason": reason, "message": "not found"}}
    init = {"name": name, "image": "registry/operator:9", "restartCount": 0, "state": waiting}
    engine = {"name": "engine", "restartCount": 0, "state": {"waiting": {"reason": "PodInitializing"}}}
    status = {"phase": "Pending", "initContainerStatuses": [init], "containerStatuses": [engine]}
    ready = found([pod(**status)], wanted=1)["Ready"]
    assert (ready.status, ready.reason) == ("False", "ImagePullFailed")
    assert f"cannot pull image registry/operator:9 of the init container that {purpose}: not found" in ready.message
    assert value in ready.message
    assert "correct engine.image" not in ready.message


@pytest.mark.parametrize(
    "said",
    [
        "INFO loading\nerror: model hf://Qwen/Nope does not exist: check model.source\n",
        'a cut line"}\n{"level": "INFO", "message": "loading"}\n{"level": "CRITICAL", "message": "model hf://Qwen/Nope'
        ' does not exist: check model.source"}\n',
    ],
)
def test_a_model_that_does_not_exist_is_reported_in_the_engine_s_words(said):
    ended = {"exitCode": 1, "reason": "Error", "message": said}
    back_off = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": ended}}
    conditions = found([pod(**container(restarts=3, **back_off))], wanted=1)
    assert conditions["ModelLoaded"].reason == "EngineFailed"
    assert conditions["Ready"].message == (
        "1 of 1 pod failed to start: model hf://Qwen/Nope does not exist: check model.source"
    )


def test_memory_names_the_limit_and_the_field_to_raise():
    ended = {"exitCode": 137, "reason": "OOMKilled"}
    problem = pod_problem(pod(**container(state={"terminated": ended})), FACTS)
    assert problem.reason == "OOMKilled"
    assert "its limit of 4Gi; raise template.resources.limits.memory" in problem.text


def test_a_crash_reports_its_exit_code_and_last_words():
    ended = {"exitCode": 139, "reason": "Error", "message": "Segmentation fault"}
    running = {"state": {"running": {}}, "lastState": {"terminated": ended}}
    problem = pod_problem(pod(**container(restarts=2, **running)), FACTS)
    assert problem.text == "ended with exit code 139 (2 restarts); its last output: Segmentation fault"


def test_a_crash_without_words_says_where_to_look():
    running = {"state": {"running": {}}, "lastState": {"terminated": {"exitCode": 139}}}
    assert "kubectl logs chat-1 --previous" in pod_problem(pod(**container(restarts=1, **running)), FACTS).text


def test_a_secret_that_does_not_exist_says_where_it_is_named():
    waiting = {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "models-s3" not found'}}
    facts = replace(FACTS, credentials="models-s3")
    conditions = found([pod(phase="Pending", **container(state=waiting))], wanted=1, facts=facts)
    assert (conditions["Ready"].status, conditions["Ready"].reason) == ("False", "ContainerNotCreated")
    assert conditions["Ready"].message == (
        '1 of 1 pod cannot start its container: secret "models-s3" not found; create it, or correct'
        " model.credentialsSecret"
    )
    other = pod_problem(pod(phase="Pending", **container(state=waiting)), FACTS)
    assert other.text.endswith("; create it, or correct its name in template")


def full(name, **more):
    """Returns a pod whose container the kubelet ended for the size of its volume."""
    said = 'Usage of EmptyDir volume "inflight-model" exceeds the limit "64Gi". '
    ended = {"state": {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}}
    return pod(name, phase="Failed", reason="Evicted", message=said, **container(**ended), **more)


@pytest.mark.parametrize(
    "others",
    [[], [pod("chat-abc-pod02")], [pod("chat-abc-pod02", phase="Pending", **container(state={"waiting": {}}))]],
    ids=["none", "one that loads", "one that starts"],
)
def test_a_model_that_is_larger_than_its_volume_says_which_field_to_raise_while_pods_come_and_go(others):
    conditions = found([full("chat-abc-pod01"), *others], wanted=1)
    for kind in ("Ready", "ModelLoaded"):
        assert (conditions[kind].status, conditions[kind].reason) == ("False", "DiskFull")
        assert conditions[kind].message == (
            f"1 of {1 + len(others)} pod{'s' * len(others)} was evicted: Usage of EmptyDir volume"
            ' "inflight-model" exceeds the limit "64Gi"; raise model.storage'
        )


def test_a_pod_that_was_evicted_for_its_volume_says_nothing_of_a_newer_template_or_beside_a_ready_one():
    first = full("chat-abc-pod01")
    later = replace(pod("chat-def-pod01"), created=first.created + 1)
    assert found([first, later], wanted=1)["Ready"].reason == "Loading"
    assert found([first, READY], wanted=1)["Ready"].reason == "Serving"
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
    image = pod("chat-abc-pod02", phase="Pending", **container(state=waiting))
    assert found([first, image], wanted=1)["Ready"].reason == "ImagePullFailed"


def test_an_evicted_pod_reports_why():
    failed = pod(phase="Failed", message="The node was low on resource: memory.", containerStatuses=[])
    assert pod_problem(failed, FACTS).text == "failed: The node was low on resource: memory."


def test_loading_and_starting_are_no_alarm():
    loading = pod_problem(pod(), FACTS)
    starting = pod_problem(pod(phase="Pending", **container(state={"waiting": {"reason": "ContainerCreating"}})), FACTS)
    assert (loading.reason, loading.blocking) == ("Loading", False)
    assert (starting.reason, starting.blocking) == ("Starting", False)
    assert "node-1" in starting.text


def test_pods_that_serve_or_go_have_no_problem():
    assert pod_problem(READY, FACTS) is None
    assert pod_problem(pod_view(pod_body("chat-1", ready=False, deleting=True)), FACTS) is None


def test_the_problem_a_person_has_most_to_do_with_is_reported_first():
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "not found"}}
    image = pod("chat-3", phase="Pending", **container(state=waiting))
    conditions = found([unschedulable(NO_GPU), image, pod()], wanted=3)
    assert conditions["Ready"].reason == "ImagePullFailed"
    assert conditions["Scheduled"].reason == "Unschedulable"


def test_no_replicas_wanted():
    conditions = found([], wanted=0)
    assert (conditions["Ready"].status, conditions["Ready"].reason) == ("False", "ScaledToZero")


def test_before_the_first_pod():
    conditions = {
        one.type: one for one in find_conditions(FACTS.source, None, Pods(), False, Metrics(0, 0, ""), *OTHERS)
    }
    assert conditions["Ready"].reason == "Starting"
    assert conditions["Progressing"].reason == "Creating"
    assert conditions["Scheduled"].status == "Unknown"


def test_pods_that_the_api_server_refuses_are_reported_with_its_words():
    said = 'pods "chat-abc-" is forbidden: error looking up service account team/nope: serviceaccount "nope" not found'
    conditions = found([], wanted=1, deployment=DeploymentView(1, 0, 0, True, "", said))
    assert (conditions["Ready"].status, conditions["Ready"].reason) == ("False", "PodsRefused")
    assert conditions["Ready"].message == f"no further pod can be created: {said}"
    assert (conditions["Progressing"].status, conditions["Progressing"].reason) == ("False", "PodsRefused")


def test_a_quota_that_refuses_one_pod_more_leaves_the_service_ready():
    conditions = found([READY], wanted=2, deployment=DeploymentView(2, 1, 1, True, "", "exceeded quota: gpus"))
    assert (conditions["Ready"].status, conditions["Ready"].reason) == ("True", "Serving")
    assert conditions["Progressing"].message == "no further pod can be created: exceeded quota: gpus"


def test_a_new_template_whose_pods_are_refused_is_no_rollout_on_its_way():
    conditions = found([READY], wanted=1, deployment=DeploymentView(1, 0, 1, True, "", "no PriorityClass high"))
    assert (conditions["Progressing"].status, conditions["Progressing"].reason) == ("False", "PodsRefused")


def test_a_rollout_on_its_way_and_one_that_is_stuck():
    moving = found([READY, READY], deployment=DeploymentView(2, 1, 3, True, ""))["Progressing"]
    assert (moving.status, moving.message) == ("True", "1 of 2 pods has the newest template")
    stuck = found([unschedulable(NO_GPU)], wanted=1, deployment=DeploymentView(1, 1, 1, True, "it timed out"))
    assert stuck["Progressing"].reason == "ProgressDeadlineExceeded"
    assert "it timed out; 1 of 1 pod waits for nvidia.com/gpu" in stuck["Progressing"].message


def test_scrapes_that_fail_say_what_went_wrong():
    condition = found([READY, READY], metrics=Metrics(2, 1, "chat-2 did not answer"))["MetricsAvailable"]
    assert condition.message == "1 of 2 ready pods without recent metrics: chat-2 did not answer"


def test_a_ready_pod_that_the_service_does_not_route_to_yet_is_not_ready_for_clients():
    conditions = found([READY], wanted=1, routed=False)
    assert (conditions["Ready"].status, conditions["Ready"].reason) == ("False", "NotRouted")
    assert conditions["ModelLoaded"].status == "True"


def test_a_pod_that_was_evicted_is_no_replica():
    evicted = pod(phase="Failed", reason="Evicted", message="The node was low on resource: memory.")
    conditions = found([READY, evicted], wanted=1)
    assert conditions["Ready"].message == "1 of 1 replicas takes requests"
    assert conditions["Progressing"].reason == "Complete"


@pytest.mark.parametrize(
    ("asleep", "reason", "said"),
    [
        (0, "Serving", ""),
        (1, "Serving", ""),
        (2, "Asleep", "; 2 pods are asleep, without a KV cache (scaling.sleep), until the next request"),
    ],
)
def test_a_service_whose_pods_are_all_asleep_is_ready_and_says_so(asleep, reason, said):
    findings = resting(tuple(found([READY, READY]).values()), asleep, 2)
    assert findings[0] == Finding("Ready", "True", reason, f"2 of 2 replicas take requests{said}")


def test_a_problem_goes_before_sleep():
    failing = pod("chat-2", **container(state={"waiting": {"reason": "ErrImageNeverPull", "message": "no"}}))
    before = tuple(found([READY, failing]).values())
    assert before[0].reason != "Serving"
    assert resting(before, 1, 1) == before
