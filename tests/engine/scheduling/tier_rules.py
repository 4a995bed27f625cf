"""The rules of the tier behind the cache: its content, what is loaded from it, and what it gives up next."""

from __future__ import annotations

from inflight_engine.scheduling.plan import StepPlan


class TierRules:
    """Blocks that the device loses are kept here, up to a number; the least recently used is given up first. What is
    lost at once and is here already counts as used first, then the rest comes in, the first lost first. What a plan
    loads is not given up before the plan is made. The device has it then, so it is given up next, of one request the
    last block first; while a place is empty, it is the most recently used instead, of one request the first block.

    What comes from a disk has places from the start, at most half of all, and counts as used when it has come.

    Contents are stamps, as in `CacheRules`.
    """

    def __init__(self, num_places: int) -> None:
        self.num_places = num_places
        self._contents: dict[int, None] = {}
        """Least recently used first."""
        self._places: dict[int, int] = {}
        self._held: list[list[int]] = []
        self._coming: dict[int, int] = {}
        """By content that no plan copies yet, the block that has it."""
        self._under_way: dict[int, set[int]] = {}
        self.fetching: dict[int, dict[int, int]] = {}
        """By number, content and place of what comes from a disk."""

    @property
    def num_full(self) -> int:
        return len(self._contents)

    @property
    def num_fetching(self) -> int:
        return sum(map(len, self.fetching.values()))

    def fetch(self, number: int, contents: list[int], indices: list[int], places: list[int]) -> None:
        """These begin to come, but for those that are here, which are used by that."""
        room = self.num_places // 2 - self.num_fetching
        missing = [at for at, content in enumerate(contents) if content not in self._contents]
        assert indices == missing[:room], "other blocks than the first that are missing come from the disk"
        for content in contents[: missing[room]] if len(missing) > room else contents:
            if content in self._contents:
                del self._contents[content]
                self._contents[content] = None
        coming: dict[int, int] = {}
        self.fetching[number] = coming
        for at, place in zip(indices, places, strict=True):
            if len(self._contents) + self.num_fetching == self.num_places:
                self._give_up(next(iter(self._contents)))
            assert place not in self._places.values(), "what comes from the disk gets a place that has content"
            assert all(place not in each.values() for each in self.fetching.values()), "a place is held twice"
            coming[contents[at]] = place

    def fetched(self, number: int, count: int) -> None:
        """So many of these have come."""
        for content, place in list(self.fetching.pop(number).items())[:count]:
            if content not in self._contents:
                self._contents[content] = None
                self._places[content] = place

    def lost(self, contents: dict[int, int]) -> None:
        """The device loses these at once: content and block, the first lost first."""
        held = {content for each in self._held for content in each}
        for content in contents:
            if content in self._contents and content not in held:
                del self._contents[content]
                self._contents[content] = None
        missing = [content for content in contents if content not in self._contents]
        for content in missing[max(0, len(missing) - (self.num_places - len(held) - self.num_fetching)) :]:
            if len(self._contents) + self.num_fetching == self.num_places:
                self._give_up(next(each for each in self._contents if each not in held))
            self._contents[content] = None
            self._coming[content] = contents[content]

    def leading(self, contents: list[int]) -> int:
        """How many of these are here, up to the first that is not."""
        return next((at for at, content in enumerate(contents) if content not in self._contents), len(contents))

    def load(self, contents: list[int], places: tuple[int, ...], plan: StepPlan) -> None:
        """A plan loads these."""
        stored = {} if plan.stores is None else dict(zip(*(each.tolist() for each in _fields(plan)), strict=True))
        for content, place in zip(contents, places, strict=True):
            coming = self._coming.get(content)
            known = self._places.get(content) if coming is None else stored.get(coming)
            assert place == known, "a block is loaded from a place that has something else"
        self._held.append(contents)

    def planned(self, plan: StepPlan) -> None:
        """A plan is made."""
        is_full = len(self._contents) + self.num_fetching == self.num_places
        for contents in self._held:
            loaded = [content for content in reversed(contents) if content in self._contents]
            others = [content for content in self._contents if content not in loaded]
            self._contents = dict.fromkeys([*loaded, *others] if is_full else [*others, *loaded])
        self._held.clear()
        stored = {} if plan.stores is None else dict(zip(*(each.tolist() for each in _fields(plan)), strict=True))
        assert sorted(stored) == sorted(self._coming.values()), "what is copied out is not what the device lost"
        self._places |= {content: stored[block] for content, block in self._coming.items()}
        assert len(set(self._places.values())) == len(self._places) <= self.num_places, "a place has two contents"
        self._under_way[plan.step] = set(self._coming)
        self._coming.clear()

    def taken_in(self, step: int) -> None:
        """The step has made its copies."""
        self._under_way.pop(step, None)

    def forget(self) -> None:
        """A step under way gave nothing."""
        for content in [*self._coming, *(each for contents in self._under_way.values() for each in contents)]:
            if content in self._contents:
                self._give_up(content)
        self._under_way.clear()

    def clear(self) -> None:
        """Everything that is here is forgotten."""
        for content in list(self._contents):
            self._give_up(content)

    def damaged(self, contents: list[int], places: tuple[int, ...]) -> None:
        """Loads of these contents from these places gave others. Later plans may have put more others there."""
        for content, place in zip(contents, places, strict=True):
            if self._places.get(content) == place:
                self._give_up(content)

    def _give_up(self, content: int) -> None:
        del self._contents[content]
        self._places.pop(content, None)
        self._coming.pop(content, None)
        for contents in self._under_way.values():
            contents.discard(content)


def _fields(plan: StepPlan):
    assert plan.stores is not None
    return plan.stores.block_ids, plan.stores.host_block_ids
