"""A running request's phases: what may follow what."""

import pytest

from inflight_engine.scheduling.phases import Phase, Phases

WAYS = {
    "a request that ends before its length": (Phase.FIRST_TOKEN_IN_FLIGHT, Phase.DECODING),
    "one that pauses": (Phase.FIRST_TOKEN_IN_FLIGHT, Phase.DECODING, Phase.PAUSED, Phase.DECODING),
    "one that reaches its length ahead": (
        Phase.FIRST_TOKEN_IN_FLIGHT,
        Phase.DECODING,
        Phase.LAST_TOKEN_IN_FLIGHT,
        Phase.FINISHED,
    ),
    "one that is extended": (
        Phase.FIRST_TOKEN_IN_FLIGHT,
        Phase.DECODING,
        Phase.EXTENDED,
        Phase.FIRST_TOKEN_IN_FLIGHT,
    ),
    "one of a single token": (Phase.FIRST_TOKEN_IN_FLIGHT, Phase.ONLY_TOKEN_IN_FLIGHT, Phase.FINISHED),
}


def at(phase):
    phases = Phases(1)
    phases.start(0)
    way = next((way[: way.index(phase) + 1] for way in WAYS.values() if phase in way), ())
    for each in way:
        phases.move(0, each)
    assert phases[0] is phase
    return phases


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_request_goes_its_way_and_leaves_the_slot_empty(way):
    phases = Phases(2)
    phases.start(1)
    assert list(phases.slots(Phase.PREFILLING)) == [1]
    for phase in way:
        phases.move(1, phase)
        assert [each for each in Phase if phases.slots(each)] == [phase]
    assert phases.leave(1) is way[-1]
    assert not any(phases.slots(each) for each in Phase)
    phases.start(1)


def test_every_step_that_no_way_takes_is_refused():
    pairs = {pair for way in WAYS.values() for pair in zip((Phase.PREFILLING, *way), way, strict=False)}
    for present in Phase:
        for following in Phase:
            phases = at(present)
            if (present, following) in pairs:
                phases.move(0, following)
            else:
                with pytest.raises(AssertionError, match=f"cannot go from {present.name} to {following.name}"):
                    phases.move(0, following)
                assert phases[0] is present


@pytest.mark.parametrize("phase", Phase)
def test_a_slot_can_be_left_in_any_phase(phase):
    assert at(phase).leave(0) is phase


def test_a_slot_is_taken_once_and_left_once():
    phases = at(Phase.DECODING)
    with pytest.raises(AssertionError, match="slot 0 is taken twice"):
        phases.start(0)
    phases.leave(0)
    with pytest.raises(AssertionError, match="slot 0 is empty"):
        phases.leave(0)


def test_slots_of_a_phase_are_in_the_order_in_which_they_came_to_it():
    phases = Phases(4)
    for slot in (2, 0, 3):
        phases.start(slot)
    phases.leave(0)
    phases.start(0)
    assert list(phases.slots(Phase.PREFILLING)) == [2, 3, 0]
