"""Requests that are hashed in turns."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_engine.cache import arriving, prefix
from inflight_engine.cache.arriving import ArrivingRequests
from inflight_engine.cache.prefix import block_hashes, root_hash
from inflight_engine.request import Request, SamplingParams, Scheduling

SIZE, TURN, OWN = 2, 8, 2


@pytest.fixture(scope="module", autouse=True)
def short_turns():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arriving, "BLOCKS_PER_TURN", TURN)
        patch.setattr(arriving, "REQUEST_BLOCKS", OWN)
        yield


@pytest.fixture(scope="module")
def hashed():
    """Counts the blocks that are hashed."""
    counts = Counter()

    def count(token_ids, block_size, parent):
        counts["blocks"] += len(token_ids) // block_size
        return block_hashes(token_ids, block_size, parent)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix, "block_hashes", count)
        yield counts


def make(number, prompt, output=(), tenant="", prompt_logprobs=None):
    sampling = SamplingParams(max_tokens=100, prompt_logprobs=prompt_logprobs)
    request = Request(number, np.array(prompt, np.int32), sampling, 0.0, Scheduling(tenant=tenant))
    request.output_token_ids = np.array(output, np.int32)
    return request


tokens = st.lists(st.integers(0, 1), min_size=1, max_size=40)
requests = st.builds(
    lambda *fields: fields, tokens, st.lists(st.integers(0, 1), max_size=9), st.sampled_from("ab"), st.booleans()
)
events = st.lists(st.one_of(requests, st.just("turn"), st.integers(0, 20)), max_size=40)


@given(events, st.booleans())
def test_requests_are_taken_in_order_with_the_hashes_of_their_blocks_and_no_turn_hashes_more_than_its_share(
    hashed, events, caching
):
    waiting, expected, taken = ArrivingRequests(SIZE if caching else None), [], []
    hashed["blocks"] = 0

    def take():
        found = waiting.take()
        taken.extend(found)
        assert hashed["blocks"] <= TURN

    for number, event in enumerate([*events, *["turn"] * 200]):
        if event == "turn":
            waiting.begin_turn()
            hashed["blocks"] = 0
            take()
        elif isinstance(event, int):
            ours = event in expected and event not in [each.request_id for each in taken]
            assert waiting.cancel(event) == ours
            if ours:
                expected.remove(event)
        else:
            prompt, output, tenant, scored = event
            waiting.put(make(number, prompt, output, tenant, 1 if scored else None))
            expected.append(number)
            take()
    assert (len(waiting), [each.request_id for each in taken]) == (0, expected)
    for each in taken:
        root = root_hash(each.scheduling.tenant, "")
        scored = each.sampling.prompt_logprobs is not None
        assert each.block_hashes == ([] if scored or not caching else block_hashes(each.token_ids, SIZE, root))


def test_answers_to_one_prompt_are_hashed_once_and_the_tokens_that_they_have_for_each(hashed):
    waiting, prompt, taken = ArrivingRequests(SIZE), [*range(10)], []
    for number in range(6):
        waiting.put(make(number, prompt, [number] * 4))
    hashed["blocks"] = 0
    while len(waiting):
        waiting.begin_turn()
        taken += waiting.take()
    assert hashed["blocks"] == 5 + 6 * 2
    assert len({each.block_hashes[4] for each in taken}) == 1
    assert len({each.block_hashes[-1] for each in taken}) == 6


def test_many_short_requests_take_several_turns(hashed):
    waiting = ArrivingRequests(SIZE)
    for number in range(10):
        waiting.put(make(number, [1]))
    numbers = []
    while len(waiting):
        waiting.begin_turn()
        numbers.append(len(waiting.take()))
    assert numbers == [4, 4, 2]
