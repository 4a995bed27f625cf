"""The pace of upgrades: never more at once than allowed, none before all services are known, all in the end."""

from hypothesis import given
from hypothesis import strategies as st

from inflight_base.manifest.keys import ServiceKey
from inflight_operator.reconcile.upgrades import UpgradePace

SERVICES = [ServiceKey("team", f"service-{number}") for number in range(6)]


@given(st.integers(1, 3), st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=80))
def test_at_most_so_many_services_move_at_once(at_once, course):
    """Any order of rounds; each round of a moving service may find it finished."""
    pace, states = UpgradePace("Paced", at_once), dict.fromkeys(SERVICES, "Pending")
    for number, finishes in course:
        key = SERVICES[number]
        if states[key] == "Pending" and pace.may_move(len(SERVICES)):
            states[key] = "Moving"
        elif states[key] == "Moving" and finishes:
            states[key] = None
        pace.note(key, states[key])
        assert sum(state == "Moving" for state in states.values()) <= at_once


def test_all_services_have_moved_in_the_end():
    pace, states = UpgradePace("Paced", 2), dict.fromkeys(SERVICES, "Pending")
    for _ in range(8):
        for key in SERVICES:
            if states[key] == "Moving":
                states[key] = None
            elif states[key] == "Pending" and pace.may_move(len(SERVICES)):
                states[key] = "Moving"
            pace.note(key, states[key])
    assert set(states.values()) == {None}


def test_a_new_process_gives_no_turn_before_it_has_looked_at_every_service():
    pace = UpgradePace("Paced", 1)
    for key in SERVICES[:-1]:
        pace.note(key, "Pending")
        assert not pace.may_move(len(SERVICES))
    pace.note(SERVICES[-1], "Moving")
    assert not pace.may_move(len(SERVICES))
    pace.note(SERVICES[-1], None)
    assert pace.may_move(len(SERVICES))


def test_a_service_that_is_deleted_while_it_moves_gives_its_turn_back():
    pace = UpgradePace("Paced", 1)
    for key in SERVICES:
        pace.note(key, "Moving" if key is SERVICES[0] else "Pending")
    pace.forget(SERVICES[0])
    assert pace.may_move(len(SERVICES) - 1)


def test_the_pace_can_be_off_either_way():
    assert UpgradePace("AtOnce").may_move(len(SERVICES))
    assert not UpgradePace("Held").may_move(len(SERVICES))
