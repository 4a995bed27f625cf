"""The decode group against a walk over all of its members."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_engine.scheduling import token_pages
from inflight_engine.scheduling.decodes import DecodeGroup
from inflight_engine.scheduling.slots import SlotTable

NUM_SLOTS = 5


class Walked:
    """Each member looked at, one by one, in each step."""

    def __init__(self, block_size):
        self.block_size = block_size
        self.members = {}

    def join(self, slot, num_tokens, length, num_blocks):
        self.members[slot] = {"tokens": num_tokens, "length": length, "blocks": num_blocks, "generated": []}

    def growing(self):
        return [slot for slot, m in sorted(self.members.items()) if m["tokens"] > m["blocks"] * self.block_size]

    def advance(self, tokens):
        for (_, member), token in zip(sorted(self.members.items()), tokens, strict=True):
            member["generated"].append(token)
            member["tokens"] += 1
        return {slot for slot, m in self.members.items() if m["tokens"] == m["length"]}


@pytest.fixture(params=[4, 256])
def page_rows(request, monkeypatch):
    """Also with pages so short that a stay covers several."""
    monkeypatch.setattr(token_pages, "PAGE_ROWS", request.param)


actions = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.integers(1, 12), st.integers(1, 30)),
        st.tuples(st.just("leave"), st.integers(0, NUM_SLOTS - 1), st.just(0)),
        st.tuples(st.just("step"), st.integers(1, 9), st.just(0)),
    ),
    max_size=40,
)


@pytest.mark.usefixtures("page_rows")
@settings(deadline=None, max_examples=150)
@given(block_size=st.integers(1, 5), script=actions)
def test_growth_ends_and_tokens_are_those_of_a_walk_over_all_members(block_size, script):
    table = SlotTable(NUM_SLOTS, max_blocks=64)
    group, walked = DecodeGroup(table, block_size), Walked(block_size)
    next_token = next_block = 0
    for action, a, b in script:
        free = [slot for slot in range(NUM_SLOTS) if slot not in walked.members]
        if action == "join" and free:
            slot, num_tokens = free[a % len(free)], a + 1
            table.num_blocks[slot] = -(-(num_tokens - 1) // block_size)
            group.join(slot, num_tokens, num_tokens + b)
            walked.join(slot, num_tokens, num_tokens + b, int(table.num_blocks[slot]))
        elif action == "leave" and a in walked.members:
            assert group.leave(a).tolist() == walked.members.pop(a)["generated"]
        elif action == "step":
            for _ in range(a):
                group.settle()
                assert group.slots.tolist() == sorted(walked.members)
                assert group.num_attended == sum(member["tokens"] for member in walked.members.values())
                growing = group.growing()
                assert ([] if growing is None else growing.tolist()) == walked.growing()
                if growing is not None:
                    ids = np.arange(next_block, next_block + len(growing), dtype=np.int32)
                    next_block += len(growing)
                    growth = group.grow(ids)
                    for slot, index, block in zip(growth.slots, growth.indices, growth.block_ids, strict=True):
                        assert index == walked.members[slot]["blocks"]
                        walked.members[slot]["blocks"] += 1
                        assert table.num_blocks[slot] == walked.members[slot]["blocks"]
                        assert table.table(slot)[-1] == block
                tokens = list(range(next_token, next_token + len(walked.members)))
                next_token += len(tokens)
                finished = walked.advance(tokens)
                assert set(group.advance()) == finished
                group.fill(np.array(tokens, np.int32))
                for slot in finished:
                    assert group.leave(slot).tolist() == walked.members.pop(slot)["generated"]
    for slot, member in walked.members.items():
        assert group.num_tokens(slot) == member["tokens"]
        assert group.leave(slot).tolist() == member["generated"]


def test_slots_is_the_same_read_only_array_until_the_group_changes():
    table = SlotTable(NUM_SLOTS, max_blocks=4)
    group = DecodeGroup(table, 4)
    group.join(1, 3, 9)
    group.settle()
    slots = group.slots
    group.advance()
    group.fill(np.array([5], np.int32))
    group.settle()
    assert group.slots is slots
    with pytest.raises(ValueError, match="read-only"):
        slots[0] = 2
    group.join(3, 3, 9)
    group.settle()
    assert group.slots.tolist() == [1, 3]


def test_tokens_are_kept_only_as_long_as_a_member_needs_them(monkeypatch):
    monkeypatch.setattr(token_pages, "PAGE_ROWS", 4)
    table = SlotTable(NUM_SLOTS, max_blocks=64)
    group = DecodeGroup(table, 4)

    def steps(count):
        for _ in range(count):
            group.settle()
            if (growing := group.growing()) is not None:
                group.grow(np.zeros(len(growing), np.int32))
            group.advance()
            group.fill(np.zeros(len(group.slots), np.int32))

    group.join(0, 2, 200)
    steps(40)
    assert len(group._tokens) == 10
    group.join(1, 2, 200)
    assert len(group.leave(0)) == 40
    steps(8)
    assert len(group._tokens) <= 3
    assert len(group.leave(1)) == 8
