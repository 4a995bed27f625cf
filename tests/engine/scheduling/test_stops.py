import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from inflight_engine.scheduling.stops import StopTokens

token_sets = st.sets(st.integers(0, 20), max_size=3).map(lambda ids: tuple(sorted(ids)))


@given(added=st.lists(token_sets, max_size=6), data=st.data(), sampled=st.lists(st.integers(0, 40), max_size=8))
def test_candidates_are_the_tokens_that_stop_some_running_request(added, data, sampled):
    stops = StopTokens()
    left = list(added)
    for ids in added:
        stops.add(ids)
    stops.candidates(np.array([0], np.int32))
    for ids in data.draw(st.permutations(added))[: len(added) // 2]:
        stops.remove(ids)
        left.remove(ids)
    union = {token for ids in left for token in ids}
    expected = [index for index, token in enumerate(sampled) if token in union]
    assert stops.candidates(np.array(sampled, np.int32)) == expected
