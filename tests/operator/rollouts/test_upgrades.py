"""The pace of upgrades: never more at once than allowed, none before all services are known, all in the end."""

from hypothesis import given
from hypothesis import strategies as st

from inflight_base.manifest.keys import ServiceKey
from inflight_base.manifest.units import Share
from inflight_operator.decide.status.sentences import sentence
from inflight_operator.reconcile.upgrades import UpgradePace

SERVICES = [ServiceKey("team", f"service-{number}") for number in range(6)]


@given(
    st.integers(1, 3),
    st.integers(0, 2),
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["", "done", "stuck"])), max_size=80),
)
def test_at_most_so_many_services_move_at_once_and_none_starts_while_too_many_are_stuck(at_once, budget, course):
    """Any order of rounds; each round of a moving or stuck service may find it finished or stuck."""
    pace, states = UpgradePace("Paced", Share(at_once), Share(budget)), dict.fromkeys(SERVICES, "Pending")
    for number, found in course:
        key, stuck = SERVICES[number], sum(state == "Stuck" for state in states.values())
        assert (pace.stopped(len(SERVICES)) is not None) == (stuck > budget)
        if states[key] == "Pending" and pace.may_move(len(SERVICES)):
            assert stuck <= budget
            states[key] = "Moving"
        elif states[key] in ("Moving", "Stuck") and found:
            states[key] = None if found == "done" else "Stuck"
        pace.note(key, states[key])
        assert sum(state == "Moving" for state in states.values()) <= at_once


def test_one_hundred_services_have_moved_although_one_is_stuck():
    keys = [ServiceKey("team", f"service-{number}") for number in range(100)]
    pace, states = UpgradePace(), dict.fromkeys(keys, "Pending")
    for key in keys:
        pace.note(key, "Pending")
    for _ in range(len(keys) + 1):
        for key in keys:
            if states[key] == "Moving":
                states[key] = "Stuck" if key is keys[3] else None
            elif states[key] == "Pending" and pace.may_move(len(keys)):
                states[key] = "Moving"
            pace.note(key, states[key])
    assert {key for key, state in states.items() if state is not None} == {keys[3]}
    assert pace.stopped(len(keys)) is None


def test_a_release_that_no_service_takes_stops_at_the_budget_and_says_so():
    keys = [ServiceKey("team", f"service-{number:02}") for number in range(30)]
    pace, states = (
        UpgradePace("Paced", Share(10, percent=True), Share(10, percent=True)),
        dict.fromkeys(keys, "Pending"),
    )
    for key in keys:
        pace.note(key, "Pending")
    for _ in range(10):
        for key in keys:
            if states[key] == "Moving":
                states[key] = "Stuck"
            elif states[key] == "Pending" and pace.may_move(len(keys)):
                states[key] = "Moving"
            pace.note(key, states[key])
    assert 3 < sum(state == "Stuck" for state in states.values()) <= 3 + 3
    said = sentence(pace.stopped(len(keys)))
    assert "such as team/service-00, and at most 3 may be (engine.upgrade.stuckServices of the chart)" in said
    for key in keys:
        pace.forget(key) if states[key] == "Stuck" else None
    assert pace.stopped(len(keys)) is None


def test_all_services_have_moved_in_the_end():
    pace, states = UpgradePace("Paced", Share(2)), dict.fromkeys(SERVICES, "Pending")
    for _ in range(8):
        for key in SERVICES:
            if states[key] == "Moving":
                states[key] = None
            elif states[key] == "Pending" and pace.may_move(len(SERVICES)):
                states[key] = "Moving"
            pace.note(key, states[key])
    assert set(states.values()) == {None}


def test_a_new_process_gives_no_turn_before_it_has_looked_at_every_service():
    pace = UpgradePace("Paced", Share(1))
    for key in SERVICES[:-1]:
        pace.note(key, "Pending")
        assert not pace.may_move(len(SERVICES))
    pace.note(SERVICES[-1], "Moving")
    assert not pace.may_move(len(SERVICES))
    pace.note(SERVICES[-1], None)
    assert pace.may_move(len(SERVICES))


def test_a_service_that_is_deleted_while_it_moves_gives_its_turn_back():
    pace = UpgradePace("Paced", Share(1))
    for key in SERVICES:
        pace.note(key, "Moving" if key is SERVICES[0] else "Pending")
    pace.forget(SERVICES[0])
    assert pace.may_move(len(SERVICES) - 1)


def test_the_pace_can_be_off_either_way():
    assert UpgradePace("AtOnce").may_move(len(SERVICES))
    assert not UpgradePace("Held").may_move(len(SERVICES))
