"""Capacity that a pod counts for: classes, and credit that ends."""

from dataclasses import replace

from inflight_operator.decide.replicas.start_up import Start, StartUps
from inflight_operator.decide.status.pod_problems import ServiceFacts
from inflight_operator.decide.status.pods import SHORTEST_CREDIT, PodClass, classify, count_replicas
from inflight_operator.observe.pods import pod_view
from tests.operator.fakes import pod_body

FACTS = ServiceFacts("builtin://smollm2", "", "4Gi")
CREATED = pod_view(pod_body("any")).created
READY = pod_view(pod_body("ready"))
LOADING = replace(pod_view(pod_body("loading", ready=False)), running_since=CREATED)
PULLING = replace(LOADING, running_since=None, phase="Pending")
CRASHED = replace(
    LOADING, uid="crashed", exit_code=1, restarts=5, waiting_reason="CrashLoopBackOff", last_message="error: no model"
)


def usual_starts(*seconds):
    return StartUps(starts=tuple(Start("node-1", 0.0, 300.0, 0.0, each, 0.0) for each in seconds))


def kinds(pods):
    return [one.kind for one in classify(pods, FACTS, StartUps(), 1800.0, CREATED + 10.0).all]


def test_each_class_has_its_pods():
    leaving = replace(READY, deleting=True)
    evicted = replace(LOADING, phase="Failed", failure="The node was low on resource: memory.")
    found = kinds([READY, LOADING, CRASHED, leaving, evicted])
    assert found == [PodClass.READY, PodClass.STARTING, PodClass.BLOCKED, PodClass.LEAVING, PodClass.EVICTED]


def test_a_container_that_was_restarted_once_starts_and_is_not_blocked():
    again = replace(CRASHED, restarts=1, waiting_reason="", running_since=CREATED + 5.0)
    assert kinds([again]) == [PodClass.STARTING]
    assert kinds([replace(again, restarts=3)]) == [PodClass.BLOCKED]
    assert kinds([replace(again, restarts=3, last_run=86_400.0)]) == [PodClass.STARTING]


def test_credit_ends_after_the_usual_start_up_time_and_begins_anew_with_a_restart():
    usual = usual_starts(40.0, 50.0, 60.0)

    def late(pod, seconds):
        (one,) = classify([pod], FACTS, usual, 1800.0, CREATED + seconds).all
        return one.late

    assert not late(LOADING, 59.0)
    assert late(LOADING, 61.0)
    assert not late(replace(LOADING, running_since=CREATED + 30.0, restarts=1, exit_code=1), 61.0)


def test_a_node_or_an_image_may_take_as_long_as_the_probe_allows():
    """Far longer than starts took on nodes that were there and had the image."""
    usual = usual_starts(20.0)
    assert not classify([PULLING], FACTS, usual, 1800.0, CREATED + 600.0).all[0].late
    assert classify([PULLING], FACTS, usual, 1800.0, CREATED + 1801.0).all[0].late


def test_a_pod_that_was_ready_for_long_has_its_time_again_when_it_is_not():
    pod = replace(LOADING, unready_since=CREATED + 5000.0)
    assert not classify([pod], FACTS, usual_starts(20.0), 1800.0, CREATED + 5010.0).all[0].late
    assert classify([pod], FACTS, usual_starts(20.0), 1800.0, CREATED + 5040.0).all[0].late


def test_before_any_start_was_seen_credit_lasts_as_long_as_the_probe_allows():
    assert not classify([LOADING], FACTS, StartUps(), 1800.0, CREATED + 1799.0).all[0].late
    assert classify([LOADING], FACTS, StartUps(), 1800.0, CREATED + 1801.0).all[0].late


def test_a_fast_start_leaves_every_pod_some_time():
    assert not classify([LOADING], FACTS, usual_starts(2.0), 1800.0, CREATED + SHORTEST_CREDIT - 1).all[0].late


def test_one_pod_that_crashes_is_its_own_matter_and_two_are_a_shared_cause():
    def counted(*pods):
        return count_replicas(classify(pods, FACTS, StartUps(), 1800.0, CREATED + 10.0), len(pods), "")

    one = counted(READY, CRASHED)
    assert (one.ready, one.blocked, one.shared_cause) == (1, 1, False)
    assert one.cause == "failed to start: no model"
    assert counted(READY, CRASHED, replace(CRASHED, uid="second")).shared_cause


def test_one_late_pod_is_replaced_and_two_are_a_shared_cause():
    slow = replace(LOADING, running_since=CREATED - 3000.0)
    second = replace(slow, uid="second")
    one, two = (
        count_replicas(classify(pods, FACTS, StartUps(), 1800.0, CREATED), 3, "") for pods in ([slow], [slow, second])
    )
    assert (one.late, one.shared_cause) == (1, False)
    assert (two.late, two.shared_cause) == (2, True)


def test_pods_that_the_api_server_refuses_are_blocked_for_a_shared_cause():
    pods = classify([READY], FACTS, StartUps(), 1800.0, CREATED + 10.0)
    found = count_replicas(pods, 3, "exceeded quota: gpus")
    assert (found.ready, found.blocked, found.shared_cause) == (1, 2, True)
    assert "exceeded quota: gpus" in found.cause
