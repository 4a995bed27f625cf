"""The tier in host memory against a dictionary: never more than its places, what is found is what was stored."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inflight_engine.cache.tiers import HostTier

NAMES = [b"%d" % number for number in range(12)]
runs = st.lists(st.sampled_from(NAMES), min_size=1, max_size=8, unique=True)


class TierMachine(RuleBasedStateMachine):
    """`memory`: what was copied to each place, unless it was dropped. `held`: places of loads that are not released."""

    PLACES = 6

    def __init__(self):
        super().__init__()
        self.tier = HostTier(self.PLACES, 4)
        self.memory = {}
        self.order = []
        self.held = []

    def free(self):
        return self.PLACES - len({place for places, _ in self.held for place in places.tolist()})

    @rule(hashes=runs)
    def store(self, hashes):
        held = {name for _, names in self.held for name in names}
        for name in hashes:
            if name in self.order and name not in held:
                self.order.remove(name)
                self.order.append(name)
        missing = [name for name in hashes if name not in self.order]
        indices, places = self.tier.reserve(hashes)
        assert [hashes[index] for index in indices] == missing[max(0, len(missing) - self.free()) :]
        assert len(set(places.tolist())) == len(places)
        taken = {place for each, _ in self.held for place in each.tolist()}
        assert taken.isdisjoint(places.tolist())
        self.tier.store(places, [hashes[index] for index in indices])
        for index, place in zip(indices, places.tolist(), strict=True):
            self.memory[place] = hashes[index]
            if len(self.order) == self.PLACES:
                self.order.remove(next(name for name in self.order if name not in held))
            self.order.append(hashes[index])

    @rule(hashes=runs)
    def load(self, hashes):
        count = len(self.tier.match(hashes))
        assert all(name in self.order for name in hashes[:count])
        assert count == len(hashes) or hashes[count] not in self.order
        places = self.tier.load(hashes[:count])
        assert [self.memory[place] for place in places.tolist()] == hashes[:count]
        self.held.append((places, hashes[:count]))

    @precondition(lambda self: self.held)
    @rule()
    def release(self):
        for at, (places, names) in enumerate(self.held):
            self.tier.release(places)
            later = {name for _, others in self.held[at + 1 :] for name in others}
            last = [name for name in reversed(names) if name in self.order and name not in later]
            others = [name for name in self.order if name not in last]
            self.order = [*last, *others] if len(self.order) == self.PLACES else [*others, *last]
        self.held.clear()

    @precondition(lambda self: self.memory and not self.held)
    @rule(data=st.data())
    def drop(self, data):
        places = data.draw(st.lists(st.sampled_from(sorted(self.memory)), max_size=3))
        self.tier.drop(places)
        dropped = {self.memory.pop(place) for place in set(places)}
        self.order = [name for name in self.order if name not in dropped]

    @invariant()
    def it_holds_what_was_used_last_and_no_more(self):
        assert self.tier.usage() == len(self.order) <= self.PLACES
        assert [name for name in NAMES if len(self.tier.match([name]))] == [
            name for name in NAMES if name in self.order
        ]

    def teardown(self):
        self.release()
        _, places = self.tier.reserve([b"new %d" % number for number in range(self.PLACES)])
        assert len(places) == self.PLACES, "places are held by nobody"


def test_what_the_device_has_is_given_up_first_where_all_places_are_taken():
    tier = HostTier(4, 4)
    store(tier, NAMES[:4])
    tier.release(tier.load(NAMES[2:4]))
    store(tier, NAMES[4:5])
    assert [len(tier.match([name])) for name in NAMES[:5]] == [1, 1, 1, 0, 1], "the last of those that were loaded"


def test_what_the_device_has_counts_as_used_while_a_place_is_empty():
    tier = HostTier(4, 4)
    store(tier, NAMES[:3])
    tier.release(tier.load(NAMES[:1]))
    store(tier, NAMES[3:5])
    assert [len(tier.match([name])) for name in NAMES[:5]] == [1, 0, 1, 1, 1]


def store(tier, names):
    indices, places = tier.reserve(names)
    tier.store(places, [names[index] for index in indices])


TestTier = TierMachine.TestCase
TestTier.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
