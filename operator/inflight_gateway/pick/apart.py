"""Prefill and decode apart: whether an engine of the service's prefill set computes a prompt, and whether the answer
then goes on at another engine.

`Fixed`: the prefill set computes every prompt while it has an engine, and all answers go on elsewhere. `Auto`: the way
that delays answers least, summed over all of them. A second between the tokens of an answer counts as the part of its
target that it uses up, in seconds before a first token: by the ratio of the two targets, and the length of the answer.

- A prompt delays its own answer until its first token, and each answer that its engine is generating for as long as
  steps compute the prompt.
- The prompts to come delay an answer: where an engine needs the share s of its time for prompts, by s / (1 - s) times
  what the answer takes alone.
- A hand-over delays the answer while its keys and values are read, and those at the engine that goes on while they are
  copied in.

So a prompt that is short or cached, or that nobody would wait for, is computed where it is answered, and two sets that
have nothing to gain from each other are used as one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from inflight_cost.model import CostModel
from inflight_gateway.pick.load import EndpointLoad, answer_tokens_per_second, copy_seconds, peer_slowness
from inflight_gateway.pick.ranking import tokens_per_ttft
from inflight_gateway.types import EngineSample, Pick, RequestView, ServiceConfig

REASON = "prefill"
"""Reason of a pick of the prefill set whose answer goes on elsewhere."""

MOVE_S = 0.02
"""Seconds that a hand-over counts besides its keys and values: the work of the gateway and of both engines for another
attempt. Below this gain nothing is handed over."""

MOST_SHARE = 0.9
"""Largest share of an engine's time for prompts that is counted."""


class Way(NamedTuple):
    """A pick, and the load of its first replica."""

    pick: Pick
    load: EndpointLoad


def choose(request: RequestView, config: ServiceConfig, answering: Way | None, prefill: Way | None) -> Way | None:
    """Returns the way of the first attempt of a request; None: it has to wait.

    Args:
        answering: pick among the replicas that answer; None: none of them can start the request soon.
        prefill: pick among those of the prefill set, which has some; None: none can start it soon.
    """
    if prefill is None:
        return None if config.apart == "Fixed" else answering
    handed_over = prefill._replace(pick=replace(prefill.pick, reason=REASON, prefill=True))
    if answering is None or config.apart == "Fixed":
        return handed_over
    sample = answering.load.sample
    if sample is None or sample.cost is None:
        return answering  # nothing is measured yet
    weight = tokens_per_ttft(config) / max(1.0, answering.load.answer_tokens)
    here, there = _Delay.of(answering, sample), _Delay.of(prefill, prefill.load.sample)
    if here is None or there is None:
        return answering
    moved = _moved(request, answering, sample, sample.cost, here.own_s)
    delays = (
        (here.before_s + weight * (here.others_s + here.answer_s), answering),
        (there.before_s + weight * (there.others_s + there.answer_s), prefill),
        (there.before_s + MOVE_S + weight * (there.others_s + moved + here.answer_s), handed_over),
    )
    return min(delays, key=_delay)[1]


class _Delay(NamedTuple):
    """Delays where a request is sent to an engine, in seconds.

    Attributes:
        before_s: until its first token.
        others_s: of other answers by its prompt, in sum. answer_s: of its own answer by prompts to come.
        own_s: time that its prompt takes.
    """

    before_s: float
    others_s: float
    answer_s: float
    own_s: float

    @classmethod
    def of(cls, way: Way, sample: EngineSample | None) -> _Delay | None:
        """Returns the delays; None: they are not known."""
        pick, load = way
        if sample is None or pick.predicted_ttft_s is None or pick.prefill_s is None:
            return None
        share = min(MOST_SHARE, load.prefill_share)
        alone_s = load.answer_tokens / answer_tokens_per_second(sample)
        others = load.in_flight + load.others
        return cls(pick.predicted_ttft_s, others * pick.prefill_s, share / (1.0 - share) * alone_s, pick.prefill_s)


def _moved(request: RequestView, answering: Way, sample: EngineSample, cost: CostModel, computed_s: float) -> float:
    """Returns the delay between tokens by a hand-over to an engine, of all answers in sum. It computes the prompt where
    that takes less. Args: computed_s: that this takes."""
    tokens = max(0, request.prompt_tokens - answering.pick.cached_tokens)
    copied_s = copy_seconds(cost, tokens, computed_s)
    read_s, others = copied_s * peer_slowness(sample), answering.load.in_flight + answering.load.others
    if copied_s + read_s >= computed_s:
        return computed_s * (1 + others)
    return read_s + copied_s * (1 + others)


def _delay(of: tuple[float, Way]) -> float:
    return of[0]
