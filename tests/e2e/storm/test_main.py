"""The services of a wake storm, and when they sleep."""

import json
import os
import signal
import threading
from types import SimpleNamespace

import pytest

from e2e.storm import __main__ as storm_main
from e2e.storm import watch as watch_module
from e2e.storm.__main__ import manifest, name_of, not_there, parser
from e2e.storm.watch import Watch, ordered_services, resident_bytes, watching
from inflight_base.manifest.units import parse_quantity
from inflight_operator.api.types import InferenceService
from tools.localcluster import ClusterError

OPTIONS = parser().parse_args([])


@pytest.mark.parametrize("asleep", [True, False])
def test_the_operator_reads_the_services_and_they_have_a_bound_on_memory(asleep):
    body = manifest(3, OPTIONS, asleep=asleep)
    body["metadata"]["uid"] = "u"
    service, unread = InferenceService.read(body)
    assert unread == ()
    assert service.spec.gateway.hold.max_wait == "300s"
    assert parse_quantity(body["spec"]["template"]["resources"]["requests"]["memory"]) == 2**30
    assert (service.spec.scaling.mode, service.spec.replicas) == (("Operator", None) if asleep else ("External", 0))


def seen(replicas=0, generation=1, ready=("True", "Idle")):
    condition = {"type": "Ready", "status": ready[0], "reason": ready[1], "message": "why"}
    status = {"observedGeneration": generation, "replicas": replicas, "conditions": [condition]}
    return {"metadata": {"name": "sleeper-00", "generation": 1}, "status": status}


def test_services_sleep_when_all_are_at_zero_and_ready_to_wake():
    assert not_there([seen()], 1, asleep=True) is None
    assert "1 of 2" in not_there([seen()], 2, asleep=True)
    assert "not at zero" in not_there([seen(replicas=1)], 1, asleep=True)
    assert "not at zero" in not_there([seen(generation=0)], 1, asleep=True)
    assert "not ready to wake: why" in not_there([seen(ready=("False", "NoGatewayPods"))], 1, asleep=True)
    assert not_there([seen(ready=("False", "ScaledToZero"))], 1, asleep=False) is None
    assert not_there([{"metadata": {"name": "sleeper-00", "generation": 1}}], 1, asleep=True) is not None


def test_ordered_services_are_those_with_a_replica():
    items = [{"metadata": {"name": name}, "spec": {"replicas": count}} for name, count in (("a", 0), ("b", 1))]
    assert ordered_services(json.dumps({"items": items})) == ["b"]


def watched(monkeypatch, answers, processes_of=lambda uid: []):
    """A watch whose updates get these Deployments with a replica in turn, and the clock, which a look moves by 10 s."""
    clock = SimpleNamespace(now=100.0)
    updates = iter(answers)

    def kubectl(*arguments):
        clock.now += 10.0
        items = [{"metadata": {"name": name}, "spec": {"replicas": 1}} for name in next(updates)]
        return json.dumps({"items": items})

    pod = SimpleNamespace(name="gateway-1", uid="u")
    monkeypatch.setattr(watch_module, "kubectl", kubectl)
    monkeypatch.setattr(watch_module, "system_pods", lambda labels: [pod])
    monkeypatch.setattr(watch_module.processes, "of_containers", processes_of)
    monkeypatch.setattr(watch_module, "time", SimpleNamespace(time=lambda: clock.now, monotonic=lambda: clock.now))
    return Watch("e2e-storm"), clock


def test_a_replica_is_ordered_at_the_latest_when_the_list_with_it_has_come(monkeypatch):
    watch, _ = watched(monkeypatch, [[], ["a"], ["a", "b"]])
    for _ in range(3):
        watch.update()
    assert watch.ordered == {"a": 120.0, "b": 130.0}


def test_what_runs_at_the_first_look_is_no_order_of_the_storm(monkeypatch):
    watch, _ = watched(monkeypatch, [["old"], ["old", "a"]])
    watch.update()
    watch.update()
    assert watch.ordered.keys() == {"a"}


def test_memory_is_read_less_often_than_replicas(monkeypatch):
    read = []
    watch, clock = watched(monkeypatch, [[]] * 4, lambda uid: read.append(uid) or [])
    for _ in range(4):
        watch.update()
        clock.now -= 9.0  # a look took 1 s
    assert len(read) == 2  # of the operator and the gateway, once


def test_a_pod_whose_groups_vanish_while_they_are_read_does_not_end_the_update(monkeypatch):
    def vanished(uid):
        raise FileNotFoundError(uid)

    watch, _ = watched(monkeypatch, [[], ["a"]], vanished)
    watch.update()
    watch.update()
    assert (watch.ordered.keys(), watch.memory) == ({"a"}, {})


@pytest.mark.parametrize("error", [OSError("the group is gone"), ValueError("half a line"), ClusterError("away")])
def test_watching_survives_an_update_that_fails(monkeypatch, error):
    updates, enough = [], threading.Event()

    class Failing:
        def update(self):
            updates.append(1)
            if len(updates) == 3:
                enough.set()
            raise error

    monkeypatch.setattr(watch_module, "UPDATE_SECONDS", 0.01)
    with watching(Failing()):
        assert enough.wait(60)


def test_a_storm_from_another_machine_says_why_it_cannot_be_watched(monkeypatch, capsys):
    monkeypatch.setattr(storm_main, "node_problem", lambda: "some reason")
    assert storm_main.main([]) == 1
    assert (
        "a wake storm needs the local cluster's own node: it reads the memory of processes" in capsys.readouterr().err
    )


def test_sigterm_ends_the_storm_as_an_exit_so_that_the_namespace_goes(monkeypatch):
    def stopped(options):
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("went on after SIGTERM")

    monkeypatch.setattr(storm_main, "run", stopped)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with pytest.raises(SystemExit) as ended:
            storm_main.main([])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 128 + signal.SIGTERM


def test_the_memory_of_a_process_is_read_and_that_of_a_gone_one_is_none():
    assert resident_bytes(os.getpid()) > 2**20
    assert resident_bytes(2**22 + 1) == 0


def test_services_are_numbered_as_their_names():
    assert [name_of(number) for number in (0, 49)] == ["sleeper-00", "sleeper-49"]
