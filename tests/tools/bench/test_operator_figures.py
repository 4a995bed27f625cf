"""Readings, differences, percentiles, the table and the command line of the operator's benchmark."""

import dataclasses
import json
import math
import re
from types import SimpleNamespace

import pytest

from inflight_base.kube.changes import Changes
from inflight_base.manifest.keys import ServiceKey
from inflight_operator.api.resolve import rolling_update
from inflight_operator.api.types import InferenceService
from tools.bench.operator import fleet, options
from tools.bench.operator.changes import Moves, Pace
from tools.bench.operator.figures import Delays, Failover, Finding, Report, SetUp, lines, phase_figures
from tools.bench.operator.operators import NEXT_ENGINE_IMAGE
from tools.bench.operator.plane import OPERATOR_USER, SECOND_USER, audit_policy, nodes
from tools.bench.operator.readings import (
    AuditLog,
    Reading,
    longest_unrenewed,
    parse_call,
    parse_values,
    writes_by_kind,
)
from tools.measure.processes import Memory


def test_delays_keep_the_misses_apart():
    assert Delays.of([3.0, None, 1.0]) == Delays(3, 1, 1.0, 3.0, 3.0)
    assert Delays.of([None]) == Delays(1, 1, None, None, None)


def test_values_are_by_name_and_label():
    text = '# TYPE a counter\na_total{result="done"} 3\n# TYPE b gauge\nb 1\n'
    assert parse_values(text) == {("a_total", "done"): 3.0, ("b", ""): 1.0}


def event(verb, resource, code=200, second=0, **more):
    return json.dumps(
        {
            "verb": verb,
            "user": {"username": "inflight-operator"},
            "objectRef": {"resource": resource, "namespace": "team-000", "name": "x", **more},
            "responseStatus": {"code": code},
            "stageTimestamp": f"2026-11-23T08:00:{second:02}.250000Z",
        }
    )


def test_writes_are_counted_by_verb_and_resource_and_refused_ones_apart():
    calls = [
        parse_call(line)
        for line in (
            event("patch", "deployments"),
            event("patch", "deployments", 409),
            event("patch", "inferenceservices", subresource="status"),
            event("patch", "inferenceservices", subresource="status"),
            event("list", "pods"),
            json.dumps({**json.loads(event("get", "-")), "objectRef": {}, "requestURI": "/apis"}),
        )
    ]
    assert writes_by_kind(calls) == {
        "patch deployments": 1,
        "patch deployments (409)": 1,
        "patch inferenceservices/status": 2,
    }


def test_a_line_of_the_audit_log_that_is_not_whole_yet_is_read_the_next_time(tmp_path):
    log = AuditLog(tmp_path / "audit.log")
    assert log.new_calls() == []
    line = event("patch", "pods")
    log.path.write_text(f"{line}\n{line[:10]}")
    assert len(log.new_calls()) == 1
    with log.path.open("a") as file:
        file.write(f"{line[10:]}\n")
    assert [call.resource for call in log.new_calls()] == ["pods"]
    assert log.new_calls() == []


def test_the_longest_time_without_a_renewal_leaves_out_those_that_were_refused():
    lines = [event("update", "leases", code, second) for code, second in ((200, 1), (200, 3), (409, 5), (200, 8))]
    calls = [parse_call(line) for line in (*lines, event("get", "leases", second=9), event("patch", "pods", second=30))]
    assert longest_unrenewed(calls) == 5
    assert longest_unrenewed(calls[:1]) is None


def reading(time, cpu, done, scrapes, pages):
    values = {
        ("inflight_operator_reconcile_total", "done"): done,
        ("inflight_operator_reconcile_duration_seconds_sum", ""): done * 0.01,
        ("inflight_operator_scrapes_total", "sample"): scrapes,
    }
    return Reading(time, {"operator": cpu, "etcd": 1.0}, 2 * cpu, values, pages)


@pytest.fixture
def figures():
    writes = [event("update", "leases", second=2 * n) for n in range(5)] + [event("patch", "deployments")] * 20
    calls = [parse_call(line) for line in writes]
    before, after = reading(100.0, 10.0, 50.0, 100.0, 1000), reading(110.0, 15.0, 150.0, 600.0, 1500)
    return phase_figures("load", before, after, Memory(200_000_000, 250_000_000), calls, Delays.of([2.0, 4.0]))


def test_a_phase_is_the_difference_of_two_readings_per_second(figures):
    assert figures.seconds == 10
    assert figures.cores == {"operator": 0.5, "etcd": 0.0}
    assert figures.machine_cores == 1
    assert (figures.rounds, figures.failed_rounds, figures.pages) == (10, 0, 50)
    assert figures.mean_round == pytest.approx(0.01)
    assert figures.scrapes == {"sample": 50}
    assert figures.writes == {"patch deployments": 2.0, "update leases": 0.5}
    assert figures.writes_but_leases == 2.0
    assert figures.unrenewed == 2


FAILOVER = Failover(15.0, 15.2, 18.0, 15.5, 20.0, 16.0, None)


@pytest.fixture
def report(figures):
    return Report(
        "A CPU, 2 cores",
        20,
        100,
        5.0,
        SetUp(1.0, 10.0, None, 19, 0),
        [figures, dataclasses.replace(figures, name="rest", delays=None)],
        FAILOVER,
    )


def test_the_table_has_a_column_for_each_phase_and_the_goals(report):
    text = list(lines(report))
    assert text[0].startswith("A CPU, 2 cores")
    table = {title: cells for title, *cells in (re.split(r"\s{2,}", line.strip()) for line in text if line)}
    assert table["operator, CPU cores"] == ["1", "0.50", "0.50"]
    assert table["metrics pages answered / s"] == ["20", "50", "50"]
    assert table["jump to replicas, p99, s"] == ["10", "4.0", "-"]
    assert table["jumps / without a write"] == ["0", "2 / 0", "-"]
    assert table["API writes / s, Leases left out"][-2:] == ["2.00", "2.00"]
    assert table["longest without renewal of the Lease, s"] == ["10", "2.0", "2.0"]
    assert any("has written the last replicas" in line and line.endswith(" -") for line in text)


def test_a_finding_that_misses_a_bound_is_marked_and_named(report):
    findings = [
        Finding("rollout", "seconds", 120.5, most=110),
        Finding("rollout", "fewest Ready", 300, least=300),
        Finding("rollout", "waves", 12.05),
        Finding("classes", "writes", 0, most=0, least=0),
        Finding("upgrade", "never seen", math.inf, most=10),
        Finding("upgrade", "not computable", math.nan, most=10),
    ]
    report = dataclasses.replace(report, findings=findings)
    text = list(lines(report))[-6:]
    assert [line.split()[-1] == "MISSED" for line in text] == [True, False, False, False, True, True]
    assert "120.5  at most 110" in text[0]
    assert report.missed == ["rollout: seconds", "upgrade: never seen", "upgrade: not computable"]


@pytest.mark.parametrize(
    ("kept", "missed", "title"),
    [
        ({"cores": {"operator": 1.0}}, {"cores": {"operator": 1.01}}, "operator, CPU cores"),
        ({"memory": Memory(1, 300_000_000)}, {"memory": Memory(1, 301_000_000)}, "operator, memory now / peak, MB"),
        ({"delays": Delays.of([10.0])}, {"delays": Delays.of([10.1])}, "jump to replicas, p99, s"),
        ({"delays": None}, {"delays": Delays.of([None])}, "jumps / without a write"),
        ({"unrenewed": 9.9}, {"unrenewed": 10.0}, "longest without renewal of the Lease, s"),
        (
            {"unrenewed": None, "seconds": 5.0},
            {"unrenewed": None, "seconds": 60.0},
            "longest without renewal of the Lease, s",
        ),
    ],
)
def test_a_phase_that_misses_a_goal_of_the_table_is_named(report, kept, missed, title):
    phases = [dataclasses.replace(report.phases[0], **one) for one in (kept, missed)]
    assert dataclasses.replace(report, phases=phases[:1]).missed == dataclasses.replace(report, phases=[]).missed == []
    assert dataclasses.replace(report, phases=phases).missed == [f"load: {title}"]


@pytest.mark.parametrize(
    ("leads", "last_write", "met"),
    [(15.0, 25.0, True), (15.0, 25.1, False), (15.0, None, False), (None, 25.0, False), (None, None, False)],
)
def test_a_new_leader_has_written_the_last_replicas_10_s_after_it_leads(leads, last_write, met):
    assert dataclasses.replace(FAILOVER, leads=leads, last_write=last_write).finding.met == met


@pytest.mark.parametrize(
    ("strategy", "replicas", "waves", "fewest"),
    [
        ("SurgeFirst", 300, 10, 300),
        ("SurgeFirst", 5, 5, 5),
        ("SurgeFirst", 15, 8, 15),
        ("ReleaseFirst", 300, 10, 270),
        ("ReleaseFirst", 5, 5, 4),
        ("ReleaseFirst", 15, 15, 14),
    ],
)
def test_a_tenth_at_a_time_is_rounded_up_for_additional_pods_and_down_for_missing_ones(
    strategy, replicas, waves, fewest
):
    pace = Pace.of(strategy, replicas)
    assert (pace.waves, pace.fewest_ready) == (waves, fewest)
    body = fleet.service(ServiceKey("team-000", "model-0000"), replicas)
    body["spec"]["rollout"] = pace.rollout
    body["metadata"]["uid"] = "uid"
    bounds = rolling_update(InferenceService.from_dict(body).spec.rollout)
    assert (bounds.max_surge, bounds.max_unavailable) == (pace.rollout["maxSurge"], pace.rollout["maxUnavailable"])


def test_the_report_is_json(report):
    assert json.loads(json.dumps(dataclasses.asdict(report)))["phases"][0]["delays"]["p99"] == 4.0


def test_services_are_valid_and_spread_over_namespaces():
    keys = fleet.keys(120)
    assert len(set(keys)) == 120
    assert len({key.namespace for key in keys}) == 3
    body = fleet.service(keys[0], 5)
    body["metadata"]["uid"] = "uid"
    spec = InferenceService.from_dict(body).spec
    assert (spec.scaling.min_replicas, spec.scaling.max_replicas) == (5, 10)


@pytest.mark.parametrize(
    ("status", "address", "ready"),
    [
        ({}, "", False),
        ({"conditions": None}, "", False),
        ({"podIP": "10.128.0.1", "conditions": [{"type": "Ready", "status": "False"}]}, "10.128.0.1", False),
        ({"podIP": "10.128.0.1", "conditions": [{"type": "Ready", "status": "True"}]}, "10.128.0.1", True),
    ],
)
def test_a_pod_is_read_at_every_stage_of_its_start(status, address, ready):
    labels = {"inflight.dev/service": "model-0001"}
    pod = fleet.pod({"metadata": {"uid": "u", "namespace": "team-000", "labels": labels}, "status": status})
    assert pod == fleet.Pod("u", ServiceKey("team-000", "model-0001"), address, ready)


def test_a_pod_that_is_being_deleted_is_not_ready():
    labels = {"inflight.dev/service": "model-0001"}
    metadata = {"uid": "u", "namespace": "team-000", "labels": labels, "deletionTimestamp": "2026-11-23T08:00:00Z"}
    assert not fleet.pod({"metadata": metadata, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}).ready


KEYS = fleet.keys(3)


def deployment(key, image, *, total=2, updated=2, available=2, generation=1):
    return {
        "metadata": {
            "namespace": key.namespace,
            "name": key.name,
            "labels": {"inflight.dev/service": key.name},
            "generation": generation,
        },
        "spec": {"replicas": 2, "template": {"spec": {"containers": [{"name": "engine", "image": image}]}}},
        "status": {
            "observedGeneration": 1,
            "replicas": total,
            "updatedReplicas": updated,
            "availableReplicas": available,
        },
    }


@pytest.mark.parametrize("more", [{"total": 3}, {"updated": 1}, {"available": 1}, {"generation": 2}])
def test_a_deployment_is_complete_once_all_its_pods_are_new_and_available(more):
    assert fleet.deployed(deployment(KEYS[0], "a")).complete
    assert not fleet.deployed(deployment(KEYS[0], "a", **more)).complete


def test_moves_are_counted_at_each_event_and_each_service_once():
    seen = {}
    moves = Moves(SimpleNamespace(deployed=seen.get))

    def event(key, image, **more):
        seen[key] = fleet.deployed(deployment(key, image, **more))
        moves.changed(key)

    first, second, third = KEYS
    event(first, "old", updated=0)
    event(first, NEXT_ENGINE_IMAGE, updated=0)
    event(second, NEXT_ENGINE_IMAGE, updated=0)
    event(first, NEXT_ENGINE_IMAGE)
    event(third, NEXT_ENGINE_IMAGE, updated=1)
    event(first, NEXT_ENGINE_IMAGE, total=3)  # scaled up since
    assert (moves.most, moves.moving, set(moves.done)) == (2, {second, third}, {first})


async def test_a_service_is_awaited_from_no_deployment_to_its_first_and_each_event_is_observed():
    watched, observed = fleet.Fleet(None, None), []
    key = KEYS[0]
    written = watched.next_scale_up(key)
    given_up = watched.next_scale_up(KEYS[1])
    given_up.cancel()
    with watched.observed(observed.append):
        for one in KEYS[:2]:
            watched._deployments_changed(Changes({one: deployment(one, "a")}, "1"))
    watched._deployments_changed(Changes({key: None}, "2"))
    assert written.done()
    assert observed == list(KEYS[:2])
    assert watched.deployed(key) is None


def test_there_are_nodes_for_twice_the_pods():
    assert len(nodes(5000)) == 10
    assert len(nodes(1)) == 1


def test_the_audit_log_holds_the_operators_requests_alone():
    rules = audit_policy()["rules"]
    assert rules == [{"level": "Metadata", "users": [OPERATOR_USER, SECOND_USER]}, {"level": "None"}]


def test_pods_are_those_of_all_services():
    chosen = options.parse(["--phases", "leader", "rest", "--services", "20", "--seconds", "2.5"])
    assert chosen.phases == ["leader", "rest"]
    assert (chosen.services, chosen.pods, chosen.seconds) == (20, 100, 2.5)


@pytest.mark.parametrize("argv", [["--phases", "none"], ["--services", "0"], ["--seconds", "-1"]])
def test_wrong_usage_ends_with_2(argv, capsys):
    with pytest.raises(SystemExit) as ended:
        options.parse(argv)
    assert ended.value.code == 2
    assert capsys.readouterr().err
