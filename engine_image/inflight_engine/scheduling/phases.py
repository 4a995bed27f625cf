"""Phases of a running request between its start and its end; a transition that cannot be raises."""

from __future__ import annotations

from collections.abc import KeysView
from enum import IntEnum


class Phase(IntEnum):
    """Phase of a request that has a slot. In flight: planned, but the tokens of the step are not known yet."""

    PREFILLING = 0
    """Tokens are left to compute before the next one is sampled."""
    FIRST_TOKEN_IN_FLIGHT = 1
    """The request decodes, and the token that its prefill samples is in flight."""
    DECODING = 2
    PAUSED = 3
    """The request would decode, but the token budget is smaller than the number of decodes."""
    LAST_TOKEN_IN_FLIGHT = 4
    """The request reaches its length with the decode in flight, so no later plan computes it."""
    ONLY_TOKEN_IN_FLIGHT = 5
    """The request reaches its length with the token that its prefill samples, which is in flight."""
    FINISHED = 6
    """Its last token was in flight and is known: it leaves before anything else is planned."""
    EXTENDED = 7
    """The request decoded, and has tokens more than it sampled, which are left to compute before the next one is."""


_NEXT: dict[Phase, tuple[Phase, ...]] = {
    Phase.PREFILLING: (Phase.FIRST_TOKEN_IN_FLIGHT,),
    Phase.FIRST_TOKEN_IN_FLIGHT: (Phase.DECODING, Phase.ONLY_TOKEN_IN_FLIGHT),
    Phase.DECODING: (Phase.PAUSED, Phase.LAST_TOKEN_IN_FLIGHT, Phase.EXTENDED),
    Phase.PAUSED: (Phase.DECODING,),
    Phase.LAST_TOKEN_IN_FLIGHT: (Phase.FINISHED,),
    Phase.ONLY_TOKEN_IN_FLIGHT: (Phase.FINISHED,),
    Phase.FINISHED: (),
    Phase.EXTENDED: (Phase.FIRST_TOKEN_IN_FLIGHT,),
}


class Phases:
    """The phase of each slot that is taken. A slot can be left in any phase: cancelled, preempted, stopped, failed."""

    def __init__(self, num_slots: int) -> None:
        self._phases: list[Phase | None] = [None] * num_slots
        self._slots: tuple[dict[int, None], ...] = tuple({} for _ in Phase)

    def __getitem__(self, slot: int) -> Phase:
        """Return the phase of a slot that is taken."""
        phase = self._phases[slot]
        if phase is None:
            raise AssertionError(f"slot {slot} is empty")
        return phase

    def slots(self, phase: Phase) -> KeysView[int]:
        """Return the slots in a phase, in the order in which they came to it; a view."""
        return self._slots[phase].keys()

    def start(self, slot: int) -> None:
        """A request takes the slot: its prefill begins."""
        if self._phases[slot] is not None:
            raise AssertionError(f"slot {slot} is taken twice")
        self._enter(slot, Phase.PREFILLING)

    def move(self, slot: int, phase: Phase) -> None:
        """Raises AssertionError where the phase cannot follow."""
        present = self[slot]
        if phase not in _NEXT[present]:
            raise AssertionError(f"slot {slot} cannot go from {present.name} to {phase.name}")
        del self._slots[present][slot]
        self._enter(slot, phase)

    def leave(self, slot: int) -> Phase:
        """The request gives up its slot; returns the phase it was in."""
        phase = self[slot]
        del self._slots[phase][slot]
        self._phases[slot] = None
        return phase

    def _enter(self, slot: int, phase: Phase) -> None:
        self._phases[slot] = phase
        self._slots[phase][slot] = None
