"""Bounds of the memory for request bodies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_gateway.relay.bodies import MAX_BODIES_BYTES, Bodies, Received, bodies_bytes_of_one
from inflight_gateway.settings import MAX_BODY_BYTES

MIB = 2**20


def headers(name=b"authorization", value=b"Bearer a"):
    return [(b"host", b"chat"), (name, value)]


@pytest.mark.parametrize("name", [b"authorization", b"api-key"])
def test_one_key_has_half_of_the_bound_and_others_have_the_rest(name):
    bodies = Bodies(MAX_BODIES_BYTES)
    of_one = [Received(bodies, headers(name)) for _ in range(5)]
    for received in of_one:
        received.take(bytes(30 * MIB))
    assert of_one[-1].is_over
    other = Received(bodies, headers(name, b"Bearer b"))
    other.take(b"x")
    assert not other.is_over
    of_one.pop().release()
    assert not of_one[0].is_over


def test_a_key_may_have_one_body_of_the_maximum_size_however_many_processes_there_are():
    bodies = Bodies(bodies_bytes_of_one(64))
    received = Received(bodies, headers())
    received.take(bytes(MAX_BODY_BYTES))
    assert not received.is_over


def test_requests_without_a_key_share_only_the_bound_of_all():
    bodies = Bodies(100 * MIB)
    for _ in range(3):
        received = Received(bodies, [(b"host", b"chat")])
        received.take(bytes(30 * MIB))
        assert not received.is_over


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["take", "checked", "whole", "release"]), st.integers(0, 50)),
        max_size=60,
    )
)
def test_nothing_is_left_when_all_requests_have_ended(steps):
    bodies = Bodies(1000)
    requests = [Received(bodies, headers(value=b"ab"[n % 2 : n % 2 + 1])) for n in range(3)] + [Received(bodies, [])]
    ended, complete = set(), set()
    for number, step, size in steps:
        received = requests[number]
        if number in ended:
            continue
        if step == "take" and number not in complete:
            received.take(bytes(size))
        elif step == "checked":
            received.checked()
        elif step == "whole":
            assert len(received.whole()) == (0 if number in complete else received.size)
            complete.add(number)
        elif step == "release":
            received.release()
            ended.add(number)
        assert 0 <= bodies.unchecked <= bodies.kept == sum(each.size for each in requests)
    for received in requests:
        received.release()
        received.release()
    assert (bodies.kept, bodies.unchecked, bodies._of_keys) == (0, 0, {})
