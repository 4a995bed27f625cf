from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inflight_gateway.relay.wrong_keys import BURST, MAX_ADDRESSES, MAX_RIGHT, PER_S, WrongKeys


def test_an_address_sends_a_burst_of_wrong_keys_and_then_ten_a_second():
    keys = WrongKeys()
    for number in range(int(BURST)):
        assert not keys.refuses("a", f"wrong {number}", 0.0)
        keys.wrong("a", 0.0)
    assert keys.refuses("a", "wrong", 0.0)
    assert not keys.refuses("b", "wrong", 0.0)
    assert keys.refuses("a", "wrong", 0.9 / PER_S)
    assert not keys.refuses("a", "wrong", 1.1 / PER_S)


def test_a_key_that_was_right_is_looked_at_whatever_its_neighbours_send():
    keys = WrongKeys()
    keys.right("right")
    for _ in range(int(BURST)):
        keys.wrong("a", 0.0)
    assert keys.refuses("a", "new", 0.0)
    assert not keys.refuses("a", "right", 0.0)


def test_memory_is_bounded():
    keys = WrongKeys()
    for number in range(MAX_ADDRESSES + 10):
        keys.wrong(f"10.0.0.{number}", 0.0)
    for number in range(MAX_RIGHT + 10):
        keys.right(f"key {number}")
    assert (len(keys._buckets), len(keys._right)) == (MAX_ADDRESSES, MAX_RIGHT)


@given(st.lists(st.floats(0, 30), max_size=400))
def test_no_second_has_more_than_its_rate_and_a_burst(pauses):
    keys, now, passed = WrongKeys(), 0.0, []
    for pause in pauses:
        now += pause / 100
        if not keys.refuses("a", "wrong", now):
            keys.wrong("a", now)
            passed.append(now)
    assert len(passed) <= BURST + PER_S * now + 1
