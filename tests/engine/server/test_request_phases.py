import itertools

from hypothesis import given
from hypothesis import strategies as st

from inflight_engine.request import FinishReason
from inflight_engine.server.requests.generation import Preempted, Timings
from inflight_engine.server.telemetry.span_attributes import request_phases


class Past:
    """A stand-in for a generation: only its times."""

    def __init__(self, timings, preemptions=()):
        self.timings, self.preemptions = timings, list(preemptions)
        self.finish_reason = FinishReason.STOP


@st.composite
def pasts(draw):
    """Possible histories of a request, up to some moment."""
    times = sorted(draw(st.lists(st.floats(0, 100), min_size=2, max_size=20)))
    finished = times.pop()
    take = iter(times)
    timings = Timings(next(take), finished=draw(st.sampled_from([finished, None])))
    timings.admitted = next(take, None)
    preemptions = []
    if draw(st.booleans()):
        timings.first_token = next(take, None)
    while (began := next(take, None)) is not None:
        resumed = next(take, None)
        caught_up = next(take, None) if draw(st.booleans()) else None
        preemptions.append(Preempted(began, resumed, caught_up))
        timings.first_token = timings.first_token or caught_up
    return Past(timings, preemptions), finished


@given(pasts())
def test_phases_follow_each_other_without_gaps_from_arrival_to_end(past):
    generation, ended = past
    phases = request_phases(generation, ended)
    assert phases[0].name == "queue"
    assert phases[0].began == generation.timings.arrived
    assert phases[-1].ended == ended
    for before, after in itertools.pairwise(phases):
        assert before.ended == after.began
        assert before.name != after.name
    assert all(phase.began <= phase.ended for phase in phases)
    assert sum(phase.name == "preempted" for phase in phases) <= len(generation.preemptions)


def test_a_request_that_ended_in_the_queue_has_that_phase_only():
    assert [phase.name for phase in request_phases(Past(Timings(1.0, finished=3.0)), 4.0)] == ["queue"]


def test_a_preemption_in_the_middle_of_a_prefill_has_no_decode_before_it():
    past = Past(Timings(0.0, 1.0, 4.0, 5.0), [Preempted(2.0, 3.0, 4.0)])
    names = [phase.name for phase in request_phases(past, 5.0)]
    assert names == ["queue", "prefill", "preempted", "prefill", "decode"]
