"""BlockPool against a model written from its rules: dicts, one block at a time."""

from collections import OrderedDict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inflight_engine.cache.block_pool import BlockPool, OutOfBlocksError

HASHES = [bytes([number]) * 16 for number in range(24)]
# Mostly the beginnings of a few long prompts, so that much is found again; now and then anything.
prompts = st.builds(lambda first, length: HASHES[first : first + length], st.sampled_from([0, 8]), st.integers(0, 8))
chains = st.one_of(prompts, prompts, st.lists(st.sampled_from(HASHES), unique=True, max_size=8))


class PoolModel:
    """The rules. What a block holds is written down when its owner computes it and never erased, as in memory."""

    def __init__(self, num_blocks):
        self.owners = dict.fromkeys(range(num_blocks), 0)
        self.empty = set(range(num_blocks))
        self.cached = OrderedDict()
        """block -> hash, next to be evicted first."""
        self.hash_of = {}
        """block -> hash, of owned and of cached blocks."""
        self.written = {}

    @property
    def num_free(self):
        return len(self.empty) + len(self.cached)

    def take(self, blocks):
        """Allocate what the pool chose: any empty ones first, then the next to be evicted."""
        for block in blocks:
            assert self.owners[block] == 0
            if self.empty:
                assert block in self.empty
                self.empty.remove(block)
            else:
                assert block == next(iter(self.cached))
                del self.cached[block]
                del self.hash_of[block]
            self.owners[block] = 1
            self.written[block] = None

    def free(self, blocks, elsewhere):
        evicted_next = elsewhere and not self.empty
        cached = []
        for block in reversed(blocks):
            self.owners[block] -= 1
            if self.owners[block] == 0:
                if block in self.hash_of:
                    cached.append(block)
                else:
                    self.empty.add(block)
        self.cached.update((block, self.hash_of[block]) for block in cached)
        for block in reversed(cached) if evicted_next else ():
            self.cached.move_to_end(block, last=False)

    def share(self, blocks):
        for block in blocks:
            self.owners[block] += 1
            self.cached.pop(block, None)

    def register(self, blocks, hashes):
        registered = []
        for block, content in zip(blocks, hashes, strict=True):
            if block not in self.hash_of and content not in self.hash_of.values():
                self.hash_of[block] = content
                self.written[block] = content
                registered.append(block)
        return registered

    def unregister(self, blocks):
        for block in blocks:
            self.hash_of.pop(block, None)
            if self.cached.pop(block, None) is not None:
                self.empty.add(block)

    def match(self, hashes):
        block_of = {content: block for block, content in self.hash_of.items()}
        found = []
        for content in hashes:
            if content not in block_of:
                break
            found.append(block_of[content])
        return found


class PoolMachine(RuleBasedStateMachine):
    @initialize(num_blocks=st.integers(1, 14))
    def start(self, num_blocks):
        self.pool = BlockPool(num_blocks, 16)
        self.twin = BlockPool(num_blocks, 16)
        self.model = PoolModel(num_blocks)
        self.tables = []

    def allocated(self, count):
        blocks = self.pool.allocate(count).tolist()
        assert len(blocks) == count
        assert self.twin.allocate(count).tolist() == blocks, "equal histories give equal tables"
        self.model.take(blocks)
        return blocks

    def freed(self, blocks, elsewhere=False):
        self.pool.free(blocks, elsewhere=elsewhere)
        self.twin.free(blocks, elsewhere=elsewhere)
        self.model.free(blocks, elsewhere)

    def registered(self, blocks, hashes):
        registered = self.pool.register(blocks, hashes)
        assert registered == self.twin.register(blocks, hashes) == self.model.register(blocks, hashes)

    @rule(count=st.integers(0, 15))
    def allocate(self, count):
        if count > self.model.num_free:
            with pytest.raises(OutOfBlocksError):
                self.pool.allocate(count)
        else:
            self.tables.append(self.allocated(count))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def grow(self, data):
        table = data.draw(st.sampled_from(self.tables))
        if self.model.num_free:
            table += self.allocated(1)

    @rule(hashes=chains)
    def start_with_a_prefix(self, hashes):
        found = self.pool.match(hashes).tolist()
        assert found == self.model.match(hashes)
        unowned = sum(self.model.owners[block] == 0 for block in found)
        assert self.pool.num_unowned(found) == unowned
        rest = len(hashes) - len(found)
        if unowned + rest > self.model.num_free:
            return
        self.pool.share(found)
        self.twin.share(found)
        self.model.share(found)
        self.tables.append(found + self.allocated(rest))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def share_a_running_table(self, data):
        table = list(data.draw(st.sampled_from(self.tables)))
        self.pool.share(table)
        self.twin.share(table)
        self.model.share(table)
        self.tables.append(table)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), hashes=chains)
    def register(self, data, hashes):
        table = data.draw(st.sampled_from(self.tables))
        size = min(len(table), len(hashes))
        self.registered(table[:size], hashes[:size])

    @rule(data=st.data())
    def unregister(self, data):
        blocks = data.draw(st.lists(st.sampled_from(sorted(self.model.owners)), unique=True, max_size=6))
        for pool in (self.pool, self.twin, self.model):
            pool.unregister(blocks)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), hashes=chains, elsewhere=st.booleans())
    def finish(self, data, hashes, elsewhere):
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        size = min(len(table), len(hashes))
        self.registered(table[:size], hashes[:size])
        self.freed(table, elsewhere)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def free_a_part(self, data):
        table = data.draw(st.sampled_from(self.tables))
        start = data.draw(st.integers(0, len(table)))
        self.freed(table[start:])
        del table[start:]

    @precondition(lambda self: self.model.num_free)
    @rule(data=st.data())
    def free_what_nobody_owns(self, data):
        unowned = [block for block, owners in self.model.owners.items() if owners == 0]
        owned = [block for block, owners in self.model.owners.items() if owners]
        with pytest.raises(ValueError, match="freed twice"):
            self.pool.free([*owned, data.draw(st.sampled_from(unowned))])

    @invariant()
    def counts_are_right(self):
        if not hasattr(self, "pool"):
            return
        assert self.pool.num_free == self.model.num_free
        assert self.pool.usage == pytest.approx(1 - self.model.num_free / self.pool.num_blocks)
        for block, owners in self.model.owners.items():
            assert owners == sum(block in table for table in self.tables)

    @rule(hashes=chains)
    def match(self, hashes):
        found = self.pool.match(hashes).tolist()
        assert found == self.model.match(hashes)
        assert [self.model.written[block] for block in found] == hashes[: len(found)], "stale content"

    @rule()
    def the_map_is_bounded_and_finds_all_that_is_there_and_nothing_else(self):
        assert len(self.pool._block_of) <= self.pool.num_blocks
        for content in HASHES:
            assert self.pool.match([content]).tolist() == self.model.match([content])


TestBlockPool = PoolMachine.TestCase
TestBlockPool.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
