"""Shares of tokens by virtual counters."""

from hypothesis import given
from hypothesis import strategies as st

from inflight_gateway.hold.service_queue import VirtualCounters

MOST = 10
TURNS = st.lists(st.tuples(st.integers(1, MOST), st.sets(st.sampled_from("bcd"))), max_size=200)
"""Charge of each start, and the clients that have a waiting request before it."""


@given(TURNS)
def test_beside_a_client_that_always_waits_no_other_is_served_more_than_it_and_one_request(turns):
    counters = VirtualCounters()
    counters.start_waiting("a", 1.0)
    waiting, served = {"a"}, dict.fromkeys("abcd", 0)
    for tokens, come in turns:
        for client in sorted(come - waiting):
            counters.start_waiting(client, 1.0)
            waiting.add(client)
        client = counters.least()
        assert client in waiting
        counters.charge(client, tokens)
        served[client] += tokens
        if client != "a":
            counters.stop_waiting(client)
            waiting.discard(client)
        assert all(served[other] <= served["a"] + MOST for other in "bcd")
