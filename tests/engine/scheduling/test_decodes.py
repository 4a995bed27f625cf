"""The decode group against a walk over all of its members."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_engine.request import Request, SamplingParams
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.decodes import DecodeGroup
from inflight_engine.scheduling.scheduler import Scheduler
from inflight_engine.scheduling.slots import SlotTable
from inflight_settings.limits import Limits

NUM_SLOTS = 5
NUM_BLOCKS = 4000


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
        return [slot for slot, m in self.members.items() if m["tokens"] == m["length"]]


actions = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.integers(1, 12), st.integers(1, 30)),
        st.tuples(st.just("leave"), st.integers(0, NUM_SLOTS - 1), st.just(0)),
        st.tuples(st.just("step"), st.integers(1, 9), st.just(0)),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=150)
@given(block_size=st.integers(1, 5), script=actions)
def test_growth_ends_and_tokens_are_those_of_a_walk_over_all_members(block_size, script):
    table = SlotTable(NUM_SLOTS, max_blocks=64)
    group, walked = DecodeGroup(table, NUM_BLOCKS, block_size), Walked(block_size)
    next_token = next_block = 0
    for action, a, b in script:
        free = [slot for slot in range(NUM_SLOTS) if slot not in walked.members]
        if action == "join" and free:
            slot, num_tokens = free[a % len(free)], a + 1
            num_blocks = table.num_blocks[slot] = -(-(num_tokens - 1) // block_size)
            table.blocks[slot, :num_blocks] = np.arange(next_block, next_block + num_blocks)
            next_block += num_blocks
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
                assert growing.tolist() == walked.growing()
                if len(growing):
                    ids = np.arange(next_block, next_block + len(growing), dtype=np.int32)
                    next_block += len(growing)
                    growth = group.grow(growing, ids)
                    for slot, index, block in zip(growth.slots, growth.indices, growth.block_ids, strict=True):
                        assert index == walked.members[slot]["blocks"]
                        walked.members[slot]["blocks"] += 1
                        assert table.num_blocks[slot] == walked.members[slot]["blocks"]
                        assert table.table(slot)[-1] == block
                tokens = list(range(next_token, next_token + len(walked.members)))
                next_token += len(tokens)
                finished = walked.advance(tokens)
                assert group.advance() == finished
                group.fill(np.array(tokens, np.int32))
                for slot in finished:
                    assert group.leave(slot).tolist() == walked.members.pop(slot)["generated"]
    for slot, member in walked.members.items():
        assert table.num_tokens[slot] == member["tokens"]
        assert group.leave(slot).tolist() == member["generated"]


def test_slots_is_the_same_read_only_array_until_the_group_changes():
    table = SlotTable(NUM_SLOTS, max_blocks=4)
    group = DecodeGroup(table, NUM_BLOCKS, 4)
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


@settings(deadline=None, max_examples=100)
@given(
    block_size=st.integers(1, 5),
    members=st.lists(st.tuples(st.integers(1, 12), st.integers(0, 30)), min_size=1, max_size=NUM_SLOTS),
    steps=st.lists(st.lists(st.integers(1, 7), min_size=NUM_SLOTS, max_size=NUM_SLOTS), max_size=12),
)
def test_a_step_may_bring_a_member_several_tokens(block_size, members, steps):
    table = SlotTable(NUM_SLOTS, max_blocks=64)
    group, walked = DecodeGroup(table, NUM_BLOCKS, block_size), Walked(block_size)
    for slot, (num_tokens, more) in enumerate(members):
        table.num_blocks[slot] = -(-(num_tokens - 1) // block_size)
        group.join(slot, num_tokens, num_tokens + more)
        walked.join(slot, num_tokens, num_tokens + more, int(table.num_blocks[slot]))
    for gains in steps:
        group.settle()
        while len(growing := group.growing()):
            assert growing.tolist() == walked.growing()
            group.grow(growing, np.zeros(len(growing), np.int32))
            for slot in growing.tolist():
                walked.members[slot]["blocks"] += 1
        assert walked.growing() == []
        gain, ended = np.zeros(NUM_SLOTS, np.int64), []
        for slot, member in walked.members.items():
            gain[slot] = min(gains[slot], member["length"] - member["tokens"])
            member["tokens"] += int(gain[slot])
            if member["tokens"] == member["length"]:
                ended.append(slot)
        assert group.count(gain, int(gain.max()), int(gain.sum())) == ended
        assert group.num_attended == sum(member["tokens"] for member in walked.members.values())
        for slot in ended:
            assert table.num_tokens[slot] == walked.members.pop(slot)["length"]
            group.leave(slot)


def test_one_long_answer_holds_no_memory_for_the_other_slots():
    """1,024 slots for 10,000 steps would be 41 MB."""
    config = SchedulerConfig(Limits(1024, 2048), num_blocks=1000, block_size=16, max_model_len=16_000)
    scheduler, token = Scheduler(config), np.zeros(1, np.int32)
    scheduler.add(Request(0, np.zeros(1, np.int32), SamplingParams(max_tokens=12_000), 0.0))

    def steps(count):
        for _ in range(count):
            scheduler.update(scheduler.schedule(), token)

    steps(100)
    tracemalloc.start()
    try:
        steps(10_000)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
