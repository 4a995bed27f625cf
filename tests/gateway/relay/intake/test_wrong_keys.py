from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inflight_gateway.relay.intake.wrong_keys import BURST, MAX_ADDRESSES, PER_S, WrongKeys


def test_an_address_sends_a_burst_of_wrong_keys_and_then_ten_a_second():
    keys = WrongKeys()
    assert not any(keys.too_many("a", 0.0) for _ in range(int(BURST)))
    assert keys.too_many("a", 0.0)
    assert not keys.too_many("b", 0.0)
    assert keys.too_many("a", 0.9 / PER_S)
    assert not keys.too_many("a", 1.1 / PER_S)


def test_memory_is_bounded():
    keys = WrongKeys()
    for number in range(MAX_ADDRESSES + 10):
        keys.too_many(f"10.0.0.{number}", 0.0)
    assert len(keys._buckets) == MAX_ADDRESSES


@given(st.lists(st.floats(0, 30), max_size=400))
def test_no_second_has_more_than_its_rate_and_a_burst(pauses):
    keys, now, passed = WrongKeys(), 0.0, 0
    for pause in pauses:
        now += pause / 100
        passed += not keys.too_many("a", now)
    assert passed <= BURST + PER_S * now + 1
