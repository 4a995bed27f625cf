"""Properties of every service that may scale to zero, whatever happens to its fleet and its gateway."""

import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inflight_operator.reconcile.decide import decide
from inflight_operator.recording.reader import Recording, differences
from inflight_operator.recording.recorder import DecisionRecorder
from tests.operator.fakes import KEY
from tests.operator.reconcile.random_fleet import Tick
from tests.operator.reconcile.sleeping_fleet import IDLE_TIMEOUT, Moment, SleepingFleet, courses, spec
from tests.operator.recording.test_recorder import content_of

start_ups = st.sampled_from([1.0, 12.0, 90.0])
# A case is a course of some 40 rounds, each checked.
some = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def course(moments, **more):
    """All rounds of a fleet but the first, which made it."""
    fleet = SleepingFleet(spec(), **more)
    for moment in moments:
        fleet.happens(moment)
    return fleet.rounds[1:]


@some
@given(courses, start_ups)
def test_the_last_replica_goes_only_where_no_request_can_be_overlooked(moments, start_up):
    for one in course(moments, start_up=start_up):
        if one.memory.replicas > 0 and one.plan.replicas == 0:
            gateway = one.snapshot.gateway
            assert gateway.known
            assert (gateway.held, gateway.in_flight) == (0, 0)
            assert gateway.idle_s >= IDLE_TIMEOUT
            assert not one.some_stale
            assert all(sample.running + sample.waiting == 0 for sample in one.snapshot.fresh.values())
            assert any(decision.reason.code == "Idle" for decision in one.plan.decisions)


@some
@given(courses, start_ups)
def test_a_held_request_wakes_a_sleeping_service_in_that_very_round(moments, start_up):
    for one in course(moments, start_up=start_up):
        if one.memory.replicas == 0:
            assert (one.plan.replicas > 0) == (one.snapshot.gateway.held > 0)


@some
@given(courses, start_ups)
def test_a_woken_service_stays_until_a_replica_was_ready_for_the_idle_timeout(moments, start_up):
    woken = None
    for one in course(moments, start_up=start_up):
        if one.memory.replicas == 0 and one.plan.replicas > 0:
            woken = one.snapshot.now
        if one.memory.replicas > 0 and one.plan.replicas == 0 and woken is not None:
            assert one.snapshot.now - woken >= IDLE_TIMEOUT
            assert one.ready


@some
@given(courses, start_ups)
def test_replicas_stay_within_zero_and_the_most(moments, start_up):
    for one in course(moments, start_up=start_up):
        assert 0 <= one.plan.replicas <= 4


@some
@given(courses, start_ups)
def test_a_service_says_that_it_is_ready_while_it_sleeps_and_its_gateway_is_heard(moments, start_up):
    for one in course(moments, start_up=start_up):
        found = {each.type: each for each in one.plan.findings}
        if one.plan.replicas == 0:
            heard = one.snapshot.gateway.heard > 0
            assert found["Idle"].status == "True"
            assert found["Waking"].status == "False"
            assert one.ready or (found["Ready"].status == "True") == heard
        else:
            assert found["Idle"].status == "False"


@some
@given(courses.map(lambda moments: [replace(one, tick=replace(one.tick, event="")) for one in moments]), start_ups)
def test_a_service_without_requests_reaches_zero_and_a_request_finds_a_replica_in_time(moments, start_up):
    fleet = SleepingFleet(spec(), start_up=start_up)
    for moment in moments:
        fleet.happens(moment)
    quiet = Moment(Tick(seconds=6.0))
    for _ in range(60):
        fleet.happens(quiet)
    assert fleet.rounds[-1].plan.replicas == 0
    assert fleet.happens(Moment(Tick(rate=1.0))).plan.replicas == 1
    for _ in range(int(start_up / 3.0) + 2):
        fleet.happens(Moment(Tick(rate=1.0)))
    assert fleet.rounds[-1].ready


@settings(some, max_examples=8)
@given(courses, start_ups)
def test_every_decision_can_be_repeated_from_its_recording_and_no_key_is_in_it(moments, start_up):
    rounds = course(moments, start_up=start_up)
    with tempfile.TemporaryDirectory() as folder:
        recorder = DecisionRecorder(Path(folder))
        for one in rounds:
            recorder.decided(KEY, one.snapshot, one.memory, one.plan)
        recorder.close()
        (file,) = Path(folder).iterdir()
        assert b"a tenant key" not in content_of(file)
        recorded = list(Recording(file).rounds())
    assert len(recorded) == len(rounds)
    for was, one in zip(rounds, recorded, strict=True):
        keys = {"admin_token": one.snapshot.admin_token, "tenant_keys": one.snapshot.tenant_keys}
        assert [str(each) for each in differences(replace(was.snapshot, **keys), one.snapshot)] == []
        assert [str(each) for each in differences(one.plan, decide(one.snapshot, one.memory))] == []
