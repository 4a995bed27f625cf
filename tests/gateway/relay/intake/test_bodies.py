"""Bounds of the memory for request bodies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_gateway.relay.intake.bodies import MAX_BODIES_BYTES, Bodies, BodyOwner, Received, bodies_bytes_of_one
from inflight_gateway.settings import MAX_BODY_BYTES

MIB = 2**20
KEY, OTHER_KEY = BodyOwner(keyed=True, name="ns/chat/k1"), BodyOwner(keyed=True, name="ns/chat/k2")
OPEN, OTHER_OPEN = BodyOwner(keyed=False, name="ns/open"), BodyOwner(keyed=False, name="ns/other")


def filled(bodies, owner, size=30 * MIB):
    """Fills memory by bodies of one owner until no more is taken."""
    taken = []
    while not taken or not taken[-1].is_over:
        received = Received(bodies, owner)
        received.count(size)
        taken.append(received)
    return taken


def free_for(bodies, owner):
    received = Received(bodies, owner)
    received.take(b"x")
    over = received.is_over
    received.release()
    return not over


@pytest.mark.parametrize(("owner", "other"), [(KEY, OTHER_KEY), (OPEN, OTHER_OPEN)], ids=["keys", "services"])
def test_one_owner_has_half_of_its_part_and_others_have_the_rest(owner, other):
    bodies = Bodies(MAX_BODIES_BYTES)
    taken = filled(bodies, owner)
    assert not free_for(bodies, owner)
    assert free_for(bodies, other)
    taken.pop().release()
    assert free_for(bodies, owner)


def test_clients_of_services_without_keys_never_fill_the_part_of_clients_with_keys():
    """A random Authorization each time filled the memory of all."""
    bodies = Bodies(MAX_BODIES_BYTES)
    for number in range(100):
        Received(bodies, BodyOwner(keyed=False, name=f"ns/{number}")).count(30 * MIB)
    assert not free_for(bodies, OPEN)
    assert free_for(bodies, KEY)


def test_clients_with_keys_never_fill_the_part_of_services_without():
    bodies = Bodies(MAX_BODIES_BYTES)
    for number in range(100):
        Received(bodies, BodyOwner(keyed=True, name=f"ns/chat/{number}")).count(30 * MIB)
    assert not free_for(bodies, KEY)
    assert free_for(bodies, OPEN)


@pytest.mark.parametrize("owner", [KEY, OPEN])
def test_an_owner_may_have_one_body_of_the_maximum_size_however_many_processes_there_are(owner):
    received = Received(Bodies(bodies_bytes_of_one(64)), owner)
    received.take(bytes(MAX_BODY_BYTES))
    assert not received.is_over


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["take", "count", "whole", "release"]), st.integers(0, 50)),
        max_size=60,
    )
)
def test_nothing_is_left_when_all_requests_have_ended(steps):
    bodies = Bodies(1000)
    requests = [Received(bodies, owner) for owner in (KEY, KEY, OTHER_KEY, OPEN)]
    ended, complete = set(), set()
    for number, step, size in steps:
        received = requests[number]
        if number in ended:
            continue
        if step == "take" and number not in complete:
            received.take(bytes(size))
        elif step == "count":
            received.count(size)
        elif step == "whole":
            assert len(received.whole()) <= received.size
            complete.add(number)
        elif step == "release":
            received.release()
            ended.add(number)
        assert bodies.kept == sum(each.size for each in requests)
    for received in requests:
        received.release()
        received.release()
    assert (bodies.kept, bodies._of_owners) == (0, {})
