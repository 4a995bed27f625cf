"""Flat (slot, token, number) entries are the same as a dictionary for each slot."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from inflight_engine.execution.sampling.slot_tokens import SlotTokens

SLOTS = 5
slots = st.integers(0, SLOTS - 1)
slot_sets = st.lists(slots, unique=True, min_size=1)
entries = st.dictionaries(st.integers(0, 9), st.integers(-5, 5), max_size=6)


class Entries(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.table = SlotTokens(SLOTS, np.int32)
        self.model = {slot: {} for slot in range(SLOTS)}

    @rule(slot=slots, values=entries)
    def set(self, slot, values):
        self.model[slot] = dict(values)
        self.table.set(slot, np.array(list(values), np.int64), np.array(list(values.values()), np.int32))

    @rule(slot=slots)
    def remove(self, slot):
        self.model[slot] = {}
        self.table.remove(slot)

    @rule(some=slot_sets, data=st.data(), amount=st.integers(1, 3))
    def add(self, some, data, amount):
        token_ids = [data.draw(st.integers(0, 9)) for _ in some]
        for slot, token in zip(some, token_ids, strict=True):
            self.model[slot][token] = self.model[slot].get(token, 0) + amount
        self.table.add(np.array(some), np.array(token_ids, np.int32), amount)

    @rule(some=slot_sets)
    def select(self, some):
        rows, token_ids, values = self.table.select(np.array(some))
        found = list(zip(rows.tolist(), token_ids.tolist(), values.tolist(), strict=True))
        expected = [(row, *entry) for row, slot in enumerate(some) for entry in self.model[slot].items()]
        assert sorted(found) == sorted(expected)

    @invariant()
    def holds_no_more_than_the_model(self):
        assert len(self.table) == sum(map(len, self.model.values()))


TestEntries = Entries.TestCase
TestEntries.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
