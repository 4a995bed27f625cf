"""Where two runs of the scheduler part, in words."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, TypeVar

from inflight_engine.recording.lines import Chunk, Ended, Preempted, Started, Step

_Each = TypeVar("_Each")


class Difference(NamedTuple):
    """The first thing that a replay decided otherwise.

    Attributes:
        step: of the decision; for an input between two steps, the later one.
        request_id: whom it concerns; None when no request does.
        what: the kind of decision.
        recorded, replayed: what was decided, each the end of a sentence.
    """

    step: int
    request_id: int | None
    what: str
    recorded: str
    replayed: str

    def __str__(self) -> str:
        who = "" if self.request_id is None else f", request {self.request_id}"
        return f"step {self.step}{who}: recorded: {self.recorded}; replayed: {self.replayed}"


def plan_difference(
    recorded: Step, replayed: Step, request_in: Mapping[int, int], decoding: Collection[int]
) -> Difference | None:
    """What two plans differ in: the first of releases, preemptions, starts, prefill chunks, decodes.

    Args:
        request_in: the request in each slot before the step.
        decoding: slots that decoded in the step before.
    """
    differ = _Comparison(recorded.step, request_in)
    difference = (
        differ.first("release", recorded.releases, replayed.releases, differ.owner, _release, "slot not given up")
        or differ.first("preemption", recorded.preemptions, replayed.preemptions, _named, _preemption, "not preempted")
        or differ.first("start", recorded.starts, replayed.starts, _named, _start, "not admitted")
    )
    if difference is not None:
        return difference
    differ = _Comparison(recorded.step, {**request_in, **{start.slot: start.request_id for start in recorded.starts}})
    difference = differ.first(
        "prefill", recorded.chunks, replayed.chunks, lambda each: differ.owner(each.slot), _chunk, "no tokens computed"
    )
    if difference is not None:
        return difference
    parted = sorted(set(recorded.decodes) ^ set(replayed.decodes))
    if parted:
        slot = parted[0]
        decoded = (slot in decoding) != (slot in recorded.decodes)
        words = f"slot {slot} decodes a token", f"slot {slot} decodes nothing"
        return Difference(recorded.step, differ.owner(slot), "decode", *(words if decoded else words[::-1]))
    if recorded.num_tokens != replayed.num_tokens:
        return Difference(
            recorded.step,
            None,
            "num_tokens",
            f"{recorded.num_tokens} tokens computed",
            f"{replayed.num_tokens} tokens computed",
        )
    return None


def end_difference(step: int, recorded: Sequence[Ended], replayed: Sequence[Ended]) -> Difference | None:
    """What two steps differ in as to who ended with them."""
    return _Comparison(step, {}).first("end", recorded, replayed, _named, _end, "not ended")


class _Comparison:
    def __init__(self, step: int, request_in: Mapping[int, int]) -> None:
        self._step = step
        self._request_in = request_in

    def owner(self, slot: int) -> int | None:
        return self._request_in.get(slot)

    def first(
        self,
        what: str,
        recorded: Sequence[_Each],
        replayed: Sequence[_Each],
        request_of: Callable[[_Each], int | None],
        words: Callable[[_Each], str],
        absent: str,
    ) -> Difference | None:
        """The first place where two lists differ, and what each of them says of the request that is named there."""
        if recorded == replayed:
            return None
        place = next(
            (index for index, (ours, theirs) in enumerate(zip(recorded, replayed, strict=False)) if ours != theirs),
            min(len(recorded), len(replayed)),
        )
        request_id = request_of((recorded if place < len(recorded) else replayed)[place])

        def said(decisions: Sequence[_Each]) -> tuple[str, str]:
            for index in range(place, len(decisions)):
                if request_of(decisions[index]) == request_id:
                    text = words(decisions[index])
                    return text, f"{text}, as number {index + 1} in the step"
            return absent, absent

        plain, ordered = zip(said(recorded), said(replayed), strict=True)
        return Difference(self._step, request_id, what, *(ordered if plain[0] == plain[1] else plain))


def _named(decision: Preempted | Started | Ended) -> int:
    return decision.request_id


def _release(slot: int) -> str:
    return f"slot {slot} given up"


def _preemption(preempted: Preempted) -> str:
    return f"preempted from slot {preempted.slot}, {'swapped out' if preempted.swapped_out else 'to be recomputed'}"


def _start(started: Started) -> str:
    came_from = "swapped in" if started.swapped_in else "cached"
    return f"admitted to slot {started.slot} with {started.num_computed_tokens} {came_from} tokens"


def _chunk(chunk: Chunk) -> str:
    return f"tokens {chunk.start} to {chunk.start + chunk.length - 1} computed in slot {chunk.slot}"


def _end(ended: Ended) -> str:
    return f"ended as {ended.reason}"
