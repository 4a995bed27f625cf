"""The index's knowledge of engines that publish KV cache events, beside the block pools of such engines."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_engine.block_events import BlocksStored
from inflight_engine.cache.block_pool import BlockPool
from inflight_engine.cache.offload import Offload
from inflight_engine.cache.prefix import block_hashes, root_hash
from inflight_engine.cache.tiers import HostTier
from inflight_engine.server.kv_events import wire
from inflight_gateway.engines.kv_events import apply
from inflight_gateway.pick import blocks as counted
from inflight_gateway.pick.blocks import MOST_MISSED, BlockMemory, BlockNames, ReplicaBlocks, TooManyBlocks
from inflight_gateway.pick.prefix_index import PrefixIndex

SIZE, PER_KEY = 4, 2
ROOT = root_hash("", "")


def text(tokens):
    """Hashes of a prompt's text, each of so many tokens as `PER_KEY` blocks."""
    length = PER_KEY * SIZE
    return tuple(hash(tuple(tokens[:end])) for end in range(length, len(tokens) + 1, length))


def named(tokens):
    return wire.short(b"".join(block_hashes(np.array(tokens, np.int32), SIZE, ROOT)))


class Engine:
    """A block pool whose events an index reads. Args: in_tier: blocks of a tier behind it; 0: there is none."""

    def __init__(self, number, index, in_tier=0):
        self.address, self.index, self.in_tier = f"engine-{number}", index, in_tier
        self.events, self.running = [], []
        self.start()
        self.blocks = ReplicaBlocks()
        index.publishes(self.address, self.blocks)

    def start(self):
        self.running.clear()
        self.pool = BlockPool(12, SIZE, self.events)
        tier = HostTier(self.in_tier, SIZE, self.events) if self.in_tier else None
        self.offload = Offload(tier, self.pool, longest=100, always=True, cost=lambda: None)

    def compute(self, tokens, now, *, apart=False):
        """Computes a prompt, and sends its first token. False: there is no room. `apart`: in the same step as others
        with its prefix, so that its blocks are its own."""
        hashes = block_hashes(np.array(tokens, np.int32), SIZE, ROOT)
        found = self.pool.match([] if apart else hashes)
        self.index.add(self.address, text(tokens))
        free = self.pool.num_free - self.pool.num_unowned(found)
        if len(hashes) - len(found) > free:
            self.index.settled(self.address, text(tokens))
            return False
        self.pool.share(found)
        if not apart:
            self.offload.load(hashes[len(found) :], 0)
        table = [*found.tolist(), *self.pool.allocate(len(hashes) - len(found)).tolist()]
        self.offload.release()
        self.offload.plan(now)
        self.offload.take_in(now)
        registered = set(self.pool.register(table, hashes))
        for place, block in enumerate(table):
            if block in registered:
                parent = hashes[place - 1] if place else b""
                content = np.array(tokens[place * SIZE : (place + 1) * SIZE], "<i4").tobytes()
                self.events.append(BlocksStored(hashes[place], parent, b"", content))
        self.running.append((tokens, table))
        self.flush(now)
        self.index.told(self.address, text(tokens), named(tokens), PER_KEY, now, now)
        self.index.settled(self.address, text(tokens))
        return True

    def end(self, place, now):
        _, table = self.running.pop(place % len(self.running))
        self.pool.free(table)
        self.flush(now)

    def flush(self, now):
        if self.events:
            apply(wire.encode(self.events, SIZE, now), self.blocks, now)
            self.events.clear()

    def finds(self, tokens):
        """Whole hashes of a prompt's text that are found, and tokens of them that are behind the device."""
        hashes = block_hashes(np.array(tokens, np.int32), SIZE, ROOT)
        on_device = [len(self.pool.match([each])) > 0 for each in hashes]
        found = [here or self.offload.has(each) for here, each in zip(on_device, hashes, strict=True)]
        whole = [*found, False].index(False) // PER_KEY
        return whole, on_device[: whole * PER_KEY].count(False) * SIZE

    def indexed(self, tokens):
        matched = self.index.matched([self.address], text(tokens))
        return matched.blocks[0], matched.loaded_tokens[0]


PROMPTS = st.lists(st.sampled_from([0, 0, 0, 1]), min_size=1, max_size=8).map(
    lambda parts: [part for each in parts for part in (each, *range(1, SIZE))]
)
"""Prompts that share prefixes: each block has one of two contents."""


@settings(max_examples=60, deadline=None)
@given(
    actions=st.lists(
        st.tuples(
            st.integers(0, 1),
            st.sampled_from(["compute", "compute", "apart", "end", "end", "restart", "abort"]),
            PROMPTS,
        ),
        min_size=1,
        max_size=60,
    ),
    in_tier=st.sampled_from([0, 4, 30]),
)
def test_of_prompts_whose_blocks_are_known_the_index_finds_what_the_engines_find(actions, in_tier):
    index = PrefixIndex()
    engines = [Engine(number, index, in_tier) for number in range(2)]
    known = []
    for now, (number, action, tokens) in enumerate(actions):
        engine = engines[number]
        if action in ("compute", "apart"):
            if engine.compute(tokens, now, apart=action == "apart"):
                known.append(tokens)
        elif action == "abort":
            # Sent, and ended before anything was computed.
            index.add(engine.address, text(tokens))
            index.settled(engine.address, text(tokens))
        elif action == "end" and engine.running:
            engine.end(number, now)
        elif action == "restart":
            engine.start()
            apply(wire.cleared(now), engine.blocks, now)
        for each in engines:
            if each.blocks.exact:
                for prompt in known[-5:]:
                    assert each.indexed(prompt) == each.finds(prompt)


def test_an_engine_counts_as_exact_once_an_event_told_of_a_prompts_blocks_and_not_before():
    index = PrefixIndex()
    engine = Engine(0, index)
    prompt = [*range(24)]
    index.add(engine.address, text(prompt))
    engine.index.told(engine.address, text(prompt), named(prompt), PER_KEY, 1.0, 1.0)
    assert not index.exact(engine.address)
    assert engine.indexed(prompt) == (3, 0)  # it was sent there
    engine.compute(prompt, 2.0)
    assert index.exact(engine.address)
    assert index.exact("engine-1") is False


def test_the_events_of_a_prompt_may_come_after_its_first_token():
    replica = ReplicaBlocks()
    for number in range(100):
        replica.told([number], 0.5, float(number))
        assert replica.exact == (number > 0)
        replica.stored([number], None, "GPU")
        assert replica.exact


def test_an_engine_whose_events_tell_of_no_prompt_any_more_is_approximated():
    index = PrefixIndex()
    engine = Engine(0, index)
    engine.compute([*range(12)], 1.0)
    for number in range(MOST_MISSED + 1):
        assert index.exact(engine.address)
        prompt = [number, *range(100, 107)]
        # Asserted, and no event follows.
        index.told(engine.address, text(prompt), named(prompt), PER_KEY, 2.0, 2.0 + 2 * number)
    index.told(engine.address, text(prompt), named(prompt), PER_KEY, 2.0, 99.0)
    assert not index.exact(engine.address)


def test_a_prompt_that_is_on_its_way_counts_until_its_blocks_are_told():
    index = PrefixIndex()
    engine = Engine(0, index)
    engine.compute([*range(12)], 1.0)
    later = [*range(50, 74)]
    index.add(engine.address, text(later))
    assert engine.indexed(later) == (3, 0)
    engine.compute(later, 2.0)
    index.settled(engine.address, text(later))
    engine.end(1, 3.0)
    assert engine.indexed(later) == (3, 0)
    engine.blocks.removed(named(later)[4:], "GPU")
    assert engine.indexed(later) == (2, 0)


def test_blocks_behind_one_that_was_evicted_are_not_found():
    replica = ReplicaBlocks()
    replica.stored([1, 2, 3, 4], None, "GPU")
    assert replica.found([1, 2, 3, 4]) == 4
    replica.removed([2], "GPU")
    assert replica.found([1, 2, 3, 4]) == 1
    assert replica.found([4]) == 0
    replica.stored([2], 1, "GPU")
    assert replica.found([2, 4]) == 2


def test_a_block_that_is_in_a_lower_tier_too_is_found_until_it_is_in_none():
    replica = ReplicaBlocks()
    replica.stored([1, 2], None, "GPU")
    replica.stored([1, 2], None, "CPU")
    replica.removed([1, 2], "GPU")
    assert replica.found([1, 2]) == 2
    assert replica.behind(2) == (2, 0)
    replica.stored([1], None, "GPU")
    assert replica.behind(2) == (1, 0)
    replica.removed([2], "CPU")
    assert replica.found([1, 2]) == 1


@pytest.mark.parametrize("tier", ["CPU", "DISK"])
def test_blocks_that_leave_the_device_are_found_behind_it_though_events_name_them_in_any_order(tier):
    replica = ReplicaBlocks()
    replica.stored([1, 2, 3, 4], None, "GPU")
    replica.removed([4, 2, 3], "GPU")
    replica.stored([4, 2, 3], None, tier)
    assert replica.found([2, 4]) == 2
    on_disk = tier == "DISK"
    assert [replica.behind(end) for end in (4, 2, 1)] == [(3, 3 * on_disk), (1, 1 * on_disk), (0, 0)]
    replica.removed([3], tier)
    assert replica.found([2, 4]) == 1


def test_of_blocks_on_the_disk_those_that_host_memory_has_too_are_not_read_from_there():
    replica = ReplicaBlocks()
    replica.stored([1, 2, 3, 4], None, "GPU")
    replica.removed([2, 3, 4], "GPU")
    replica.stored([2, 3, 4], None, "DISK")
    replica.stored([3], None, "CPU")
    assert replica.behind(4) == (3, 2)


def test_blocks_that_went_behind_the_device_before_the_first_event_are_found_once_a_prompt_names_them():
    replica = ReplicaBlocks()
    replica.stored([3, 2], None, "CPU")
    replica.stored([4], 3, "GPU")
    assert replica.found([2, 4]) == 0
    replica.told([1, 2, 3, 4], 1.0, 1.0)
    assert replica.found([2, 4]) == 2
    replica.removed([2, 3], "GPU")
    assert (replica.found([2, 4]), replica.behind(4)) == (2, (2, 0))


def test_a_prompt_tells_of_blocks_of_before_the_first_event_and_of_none_that_was_removed_since():
    replica = ReplicaBlocks()
    replica.stored([9], 3, "GPU")
    replica.removed([2], "GPU")
    replica.told([1, 2, 3, 9], 1.0, 1.0)
    assert replica.found([1, 2, 3]) == 1
    replica.forget_removed()
    replica.forget_removed()
    replica.told([1, 2, 3, 9], 1.0, 1.0)
    assert replica.found([1, 2, 3, 9]) == 4


def test_news_of_a_prompt_from_before_a_restart_of_the_engine_bring_no_blocks_back():
    replica = ReplicaBlocks()
    replica.stored([1, 2], None, "GPU")
    replica.told([1, 2], 1.0, 1.0)
    replica.clear(2.0)
    replica.told([1, 2], 1.0, 1.0)
    assert replica.found([1]) == 0
    replica.told([1, 2], 3.0, 3.0)
    assert replica.found([1, 2]) == 2


def test_text_that_prompts_share_stands_for_the_blocks_that_they_share():
    """The first prompt's tokens are denser in its own part, so that by their mean the shared text has six blocks."""
    names, replica = BlockNames(), ReplicaBlocks()
    first = [1, 2, 3, 4, 11, 12, 13, 14]
    second = [1, 2, 3, 4, 21, 22]
    replica.stored(first, None, "GPU")
    names.learn(["a", "b", "c"], first, 2.0, [replica])
    assert names.known(["a", "b", "c", "d"]) == [2, 4, 12]
    replica.stored(second[4:], 4, "GPU")
    names.learn(["a", "b", "c"], second, 1.5, [replica])
    assert names.known(["a", "b", "c"]) == [1, 3, 4]
    names.learn(["a", "b", "c"], first, 2.0, [replica])
    assert names.known(["a", "b", "c"]) == [1, 3, 4]


def test_names_that_no_prompt_had_for_long_are_forgotten(monkeypatch):
    monkeypatch.setattr(counted, "MOST_NAMES", 8)
    names = BlockNames()
    for number in range(20):
        names.learn([number, "shared"], [2 * number, 2 * number + 1], 1.0, ())
        assert number in names
        assert "shared" in names
        assert len(names._young) + len(names._old) <= 10
    assert 0 not in names


def test_blocks_of_an_engine_and_of_all_engines_are_bounded(monkeypatch):
    monkeypatch.setattr(counted, "MOST_HELD", 4096)
    memory = BlockMemory(3 * 1024 * counted.BLOCK_BYTES)
    one, other = ReplicaBlocks(memory), ReplicaBlocks(memory)
    one.stored(range(2000), None, "GPU")
    other.stored(range(1000), None, "GPU")
    with pytest.raises(TooManyBlocks, match="memory"):
        other.stored(range(1000, 2000), 999, "GPU")
    one.clear(0.0)
    other.stored(range(1000, 2000), 999, "GPU")
    with pytest.raises(TooManyBlocks, match="KV cache"):
        ReplicaBlocks().stored(range(5000), None, "GPU")
    other.close(0.0)
    assert memory.free == 3 * 1024 * counted.BLOCK_BYTES


def test_blocks_in_a_circle_are_no_prompt():
    replica = ReplicaBlocks()
    replica.stored([1], 2, "GPU")
    replica.stored([2], 1, "GPU")
    assert replica.found([2]) == 0
    assert replica.found([1, 2]) == 0


def test_blocks_in_unknown_media_are_not_held_and_not_missed_there():
    replica = ReplicaBlocks()
    replica.stored([1], None, "GPU")
    replica.stored([1, 2], None, "shelf")
    replica.removed([1], "shelf")
    assert len(replica) == 1
    assert replica.found([1]) == 1


def test_a_large_tier_leaves_room_for_the_blocks_of_the_device(monkeypatch):
    monkeypatch.setattr(counted, "MOST_HELD", 4096)
    replica = ReplicaBlocks()
    for begin in range(0, 10_000, 100):
        replica.stored([*range(begin, begin + 100)], None, "DISK")
    assert 1900 < len(replica) <= 2048
    replica.stored(range(10_000, 12_000), None, "GPU")
    assert replica.found([11_999]) == 0
    assert replica.found(range(10_000, 12_000)) == 2000


def test_an_engine_that_removes_more_than_any_engine_computes_is_refused(monkeypatch):
    monkeypatch.setattr(counted, "MOST_REMOVED", 100)
    replica = ReplicaBlocks()
    for _ in range(3):
        replica.removed(range(100), "GPU")
        with pytest.raises(TooManyBlocks, match="removed"):
            replica.removed([100], "GPU")
        replica.forget_removed()
