"""Lead time by phase: what is learned of the pods that start, and what is expected of the next one."""

import math
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_operator.decide.replicas.start_up import (
    DEFAULT,
    RECENT,
    REPORT_SECONDS,
    Elsewhere,
    FleetStartUps,
    LeadTime,
    Phases,
    Start,
    StartUps,
    known,
)
from inflight_operator.observe.metrics import Sample
from inflight_operator.observe.pods import pod_view
from tests.operator.fakes import pod_body

ENGINE, LIMIT = "hf://org/model", 1800.0
NOBODY = Elsewhere()
CREATED = pod_view(pod_body("any")).created
READY = replace(
    pod_view(pod_body("ready")),
    scheduled_since=CREATED + 1.0,
    running_since=CREATED + 5.0,
    ready_since=CREATED + 45.0,
)
STARTING = replace(READY, ready=False, ready_since=None)
SAMPLE = Sample(time=0.0, weights_seconds=30.0)


def after(startups, pods, *, listed=True, samples=SAMPLE, at=46.0, engine=ENGINE):
    """The starts after a round `at` seconds after the creation."""
    uids = {pod.uid for pod in pods if pod.ready} if listed else ()
    return startups.with_pods(engine, pods, uids, dict.fromkeys(uids, samples) if samples else {}, LIMIT, CREATED + at)


def learned(*starts):
    return StartUps(ENGINE, tuple(starts))


def test_each_phase_has_its_seconds():
    ready = after(after(StartUps(ENGINE), [STARTING], at=44.0), [READY], listed=False, at=45.2)
    seen = after(ready, [READY])
    assert seen.starts == (Start("node-1", scheduled=1.0, image=4.0, weights=30.0, engine=10.0, endpoints=1.0),)
    assert seen.lead_time(["node-1"], NOBODY) == LeadTime(Phases(1.0, 4.0, 30.0, 10.0, 1.0), 1, "Node")


def test_each_pod_counts_once_also_when_it_becomes_ready_again():
    seen = after(after(StartUps(ENGINE), [STARTING]), [READY])
    again = after(after(seen, [STARTING]), [replace(READY, ready_since=CREATED + 900.0)], at=901.0)
    assert again.starts == seen.starts


def test_a_pod_counts_when_its_endpoint_and_its_metrics_are_there_or_after_a_while():
    waits = after(after(StartUps(ENGINE), [STARTING]), [READY], listed=False)
    assert waits.starts == ()
    unread = after(waits, [READY], samples=None, at=47.0)
    assert unread.starts == ()
    assert after(unread, [READY], at=50.0).starts[0].endpoints == 2.0
    both_at_once = after(after(StartUps(ENGINE), [STARTING]), [READY], at=48.0)
    assert both_at_once.starts[0].endpoints == 0.0
    late = after(waits, [READY], listed=False, samples=None, at=45.0 + REPORT_SECONDS + 1)
    assert late.starts == (Start("node-1", 1.0, 4.0, 0.0, 40.0, None),)


@pytest.mark.parametrize("field", ["running_since", "ready_since"])
def test_what_took_longer_than_a_pod_may_take_to_start_teaches_nothing(field):
    """An image or a Secret that came late, or a pod that was ready before this operator saw it."""
    late = replace(READY, **{field: getattr(READY, field) + LIMIT})
    late = replace(late, ready_since=max(late.ready_since, late.running_since + 40.0))
    seen = after(StartUps(ENGINE), [late], at=2 * LIMIT)
    assert (seen.starts, seen.counted) == ((), frozenset({late.uid}))


def test_a_pod_that_was_listed_when_it_was_first_seen_tells_nothing_of_endpoints():
    seen = after(StartUps(ENGINE), [READY], at=5000.0)
    assert seen.starts == (Start("node-1", 1.0, 4.0, 30.0, 10.0, None),)
    assert seen.lead_time([], NOBODY).phases.endpoints == DEFAULT.endpoints


@pytest.mark.parametrize(
    "change", [{"restarts": 1}, {"phase": "Failed"}, {"deleting": True}], ids=lambda change: next(iter(change))
)
def test_failed_starts_teach_nothing_also_if_the_pod_is_ready_in_the_end(change):
    failed = replace(STARTING, **change)
    assert after(after(StartUps(ENGINE), [failed]), [READY]).starts == ()
    assert after(after(StartUps(ENGINE), [STARTING]), [replace(READY, **change)]).starts == ()


def test_a_wait_for_capacity_is_no_lead_time_and_the_rest_of_that_start_is():
    """A node that an autoscaler adds is: the next pod waits for one, too."""

    def start(wait):
        moved = {name: getattr(READY, name) + wait for name in ("scheduled_since", "running_since", "ready_since")}
        unschedulable = replace(STARTING, scheduled_since=None, running_since=None, node="", unschedulable="0/3 nodes")
        waits = after(StartUps(ENGINE), [unschedulable], at=wait)
        return after(waits, [replace(READY, **moved)], at=wait + 46.0).starts

    assert start(LIMIT)[0].scheduled is None
    assert start(LIMIT)[0][2:5] == (4.0, 30.0, 10.0)
    assert start(120.0)[0].scheduled == 121.0


def test_pods_that_exist_when_the_model_changes_are_of_the_earlier_one():
    other = "hf://org/other"
    changed = after(after(StartUps(ENGINE), [READY]), [READY, replace(STARTING, uid="old")], engine=other)
    assert changed.starts == ()
    new = replace(READY, uid="new")
    ready = after(changed, [READY, replace(READY, uid="old"), new], engine=other)
    assert len(ready.starts) == 1


def test_after_a_restart_of_the_operator_pods_that_are_ready_do_not_count_again():
    start = Start("node-1", 1.0, 1.0, 1.0, 1.0, 1.0)
    restored = replace(learned(start), restored=True)
    first = after(restored, [READY, replace(STARTING, uid="new")], at=9000.0)
    assert first.starts == (start,)
    assert not first.restored
    assert len(after(first, [READY, replace(READY, uid="new")], at=9000.0).starts) == 2


def test_a_claim_of_the_engine_is_no_longer_than_its_start():
    start = after(after(StartUps(ENGINE), [STARTING]), [READY], samples=Sample(time=0.0, weights_seconds=1e9)).starts[0]
    assert (start.weights, start.engine) == (40.0, 0.0)


def of(seconds, node="a"):
    return Start(node, 0.0, 0.0, 0.0, seconds, 0.0)


def test_the_nearest_starts_that_are_known_count():
    own = learned(of(60.0), of(10.0, "b"), of(12.0, "b"))
    same, fleet = known([of(30.0)]), known([of(99.0)])
    everywhere = Elsewhere(same, fleet)

    def expected(startups, nodes, elsewhere=everywhere):
        lead = startups.lead_time(nodes, elsewhere)
        return lead.phases.engine, lead.basis, lead.starts

    assert expected(own, ["b"]) == (11.0, "Node", 2)
    assert expected(own, ["a", "b"]) == (35.5, "Node", 3)
    assert expected(own, ["new"]) == (12.0, "Source", 3)
    assert expected(StartUps(), ["a"]) == (30.0, "Source", 1)
    assert expected(StartUps(), ["a"], Elsewhere(fleet=fleet)) == (99.0, "Fleet", 1)
    assert expected(StartUps(), ["a"], NOBODY) == (DEFAULT.engine, "Default", 0)


def test_the_first_start_on_a_node_is_forgotten_after_some_that_found_the_image_and_the_model_there():
    course = [300.0, 20.0, 20.0, 20.0]
    said = [learned(*map(of, course[:count])).lead_time(["a"], NOBODY).phases.engine for count in range(1, 5)]
    assert said == [300.0, 160.0, 20.0, 20.0]


def test_services_of_the_same_model_know_more_than_others():
    fleet = FleetStartUps()
    fleet.note("twin", learned(of(50.0)))
    fleet.note("other", StartUps("other", (of(10.0), of(10.0))))
    fleet.note("idle", StartUps("other"))
    elsewhere = fleet.elsewhere(ENGINE)
    assert (elsewhere.same.starts, elsewhere.same.phases[3]) == (1, 50.0)
    assert (elsewhere.fleet.starts, elsewhere.fleet.phases[3]) == (3, 30.0)
    fleet.forget("twin")
    assert fleet.elsewhere(ENGINE).same.starts == 0


def test_a_pod_that_starts_has_the_rest_of_its_phase_and_the_later_ones_before_it():
    lead = LeadTime(Phases(10.0, 20.0, 30.0, 5.0, 1.0))
    pending = replace(STARTING, scheduled_since=None, running_since=None)
    assert lead.remaining(pending, CREATED + 4.0) == 62.0
    assert lead.remaining(pending, CREATED + 400.0) == 56.0
    placed = replace(pending, scheduled_since=CREATED + 400.0)
    assert lead.remaining(placed, CREATED + 405.0) == 51.0
    assert lead.remaining(replace(placed, running_since=CREATED + 410.0), CREATED + 420.0) == 26.0
    assert lead.remaining(replace(placed, running_since=CREATED + 410.0), CREATED + 999.0) == 1.0


seconds = st.floats(0, 5000)
rarely = st.none() | seconds
starts = st.lists(st.builds(Start, st.sampled_from("abc"), rarely, seconds, seconds, seconds, rarely), max_size=40)


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from([ENGINE, "other"]), starts)))
def test_what_services_know_together_are_the_medians_of_those_that_are_left(notes):
    fleet, left = FleetStartUps(), {}
    for key, engine, seen in notes:
        left[key] = StartUps(engine, tuple(seen))
        fleet.note(key, left[key])
    for engine in (ENGINE, "other"):
        of_all = [one for one in left.values() if one.starts]
        of_engine = [one for one in of_all if one.engine == engine]
        said = fleet.elsewhere(engine)
        for those, found in ((of_engine, said.same), (of_all, said.fleet)):
            rows = [known(one.starts) for one in those]
            assert found.starts == sum(row.starts for row in rows)
            for at, seconds in enumerate(found.phases):
                told = [row.phases[at] for row in rows if row.phases[at] is not None]
                assert seconds == (median(told) if told else None)


@given(starts, starts, starts, st.sets(st.sampled_from("abcd")))
def test_no_phase_is_expected_to_be_shorter_or_longer_than_any_that_was_seen(own, same, fleet, nodes):
    lead = learned(*own).lead_time(sorted(nodes), Elsewhere(known(same), known(fleet)))
    for at, expected in enumerate(lead.phases, start=1):
        told = [start[at] for start in own if start[at] is not None] or [
            start[at] for start in (*same, *fleet) if start[at] is not None
        ]
        least, most = (min(told), max(told)) if told else (DEFAULT[at - 1], DEFAULT[at - 1])
        assert least * (1 - 1e-9) <= expected <= most * (1 + 1e-9)
    assert (lead.basis == "Default") == (not own and not same and not fleet)


moments = st.lists(
    st.tuples(
        st.floats(0, 2 * LIMIT),
        st.floats(0, 100),
        st.floats(0, 200),
        st.floats(0, 20),
        st.integers(0, 2),
        st.booleans(),
    ),
    max_size=30,
)


@given(moments)
def test_what_is_learned_is_bounded_and_of_pods_that_started_in_time_at_the_first_try(course):
    """Each pod: seconds until its node, its container, Ready and its endpoint; restarts; whether it is ever Ready."""
    seen, fine = StartUps(ENGINE), []
    for number, (node, container, ready, endpoint, restarts, succeeds) in enumerate(course):
        pending = replace(STARTING, uid=f"uid-{number}", scheduled_since=None, running_since=None, node="")
        seen = after(seen, [pending], at=0.0)
        placed = CREATED + node
        started = replace(STARTING, uid=pending.uid, scheduled_since=placed, running_since=placed + container)
        started = replace(started, restarts=restarts)
        seen = after(seen, [started], at=node + container)
        if succeeds:
            at = node + container + ready
            there = replace(started, ready=True, ready_since=CREATED + at)
            seen = after(seen, [there], listed=False, samples=None, at=at)
            seen = after(seen, [there], at=at + endpoint)
            fine += [(node, container, ready, endpoint)] if not restarts else []
        assert len(seen.starts) <= RECENT
        assert len(seen.counted) + len(seen.listed) <= 1
    assert len(seen.starts) == min(RECENT, len(fine))
    for start, (node, container, ready, endpoint) in zip(seen.starts, fine[-RECENT:], strict=True):
        assert start.scheduled is None if node > LIMIT + 1e-3 else start.scheduled == pytest.approx(node, abs=1e-3)
        assert (start.image, start.running) == pytest.approx((container, ready), abs=1e-3)
        assert start.endpoints == pytest.approx(endpoint, abs=1e-3)
        assert all(seconds is None or 0 <= seconds < math.inf for seconds in start.phases.values())
    assert (seen.p95 is None) == (not fine)
