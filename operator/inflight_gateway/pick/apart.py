"""Prefill and decode apart: whether an engine of the prefill set computes a prompt, and the answer goes on at another
engine after its first token.

`Fixed`: each does. `Auto`: all engines take requests as one set, by the same scores, unless more answers then miss
their TPOT target than if the prefill set computed each prompt. The two are counted as if all requests went one way or
the other: an answer that leaves an engine gains by the prompts of others there, so one request alone gains nothing.

- An engine spends shares of its time on prompts, as one set, or on copying them in, apart, and on what each answer adds
  to a step. The constant part of its steps has the rest, which says how long they take. Apart, each answer also waits
  once, for its hand-over.
- The TPOT target leaves an answer a time for delays. By Markov's inequality for squares, the mean square of the delays
  in squares of that time is the largest share of answers that miss the target. A delay by a mean of d in pieces of p,
  which come at random, has the mean square d (d + p).
- Apart nothing may wait for long: no prompt for the prefill set, where it would be late, and no answer for a slot.

Where both ways miss as many, or no target is set, an answer whose prompt went to the prefill set goes on elsewhere if
that delays answers less by far, summed over all of them:

- Prompts to come delay an answer: where an engine needs the share s of its time for prompts, by s / (1 - s) times what
  the answer takes alone.
- An answer adds to each step, and so delays each of those beside it.
- A hand-over delays the answer while its keys and values are read, and those at the engine that goes on while they are
  copied in.

A second between the tokens of an answer counts as the part of its target that it uses up, in seconds before a first
token: by the ratio of the two targets, and the length of the answer.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import NamedTuple

from inflight_cost.model import CostModel
from inflight_gateway.pick.load import EndpointLoad, answer_tokens_per_second, copy_seconds, peer_slowness
from inflight_gateway.pick.ranking import tokens_per_ttft
from inflight_gateway.types import EngineSample, Pick, RequestView, ServiceConfig

REASON = "prefill"
"""Reason of a pick of the prefill set whose answer goes on elsewhere."""

MOVE_S = 0.02
"""Seconds that a hand-over counts besides its keys and values: the work of the gateway and of both engines for another
attempt."""

GAIN = 2.0
"""Least ratio of what an answer is delayed where it stays to what a hand-over and the other engine delay: both are
predictions for the whole answer, from the load at its begin."""

MOST_SHARE = 0.9
"""Largest share of an engine's time for prompts that is counted, and that a prefill set can give them."""

SPARE_SLOTS = 1.5
"""Slots of an engine that are free on average where answers are handed over: an answer that waits for one misses its
target, and loads vary."""

LEAST_SAVED = 0.1
"""Share of answers that must keep their target apart only: if noise decided, some prompts would be computed apart and
others beside the answers that were handed over, which is worse than either."""


class Way(NamedTuple):
    """A pick.

    Attributes:
        load: of its first replica. prefill_share: share of its recent time that this one needed for prompts that this
            picker sent there.
    """

    pick: Pick
    load: EndpointLoad
    prefill_share: float = 0.0


def handed_over(way: Way) -> Way:
    """Returns the way of a request whose answer goes on elsewhere: only engines of the prefill set begin it."""
    endpoints = tuple(one for one in way.pick.endpoints if one.prefill)
    return way._replace(pick=replace(way.pick, endpoints=endpoints, reason=REASON, prefill=True))


class Traffic(NamedTuple):
    """Requests that a service was sent recently.

    Attributes:
        requests, prompt_tokens: numbers a second; of tokens, those that were not cached.
        engines, answering: numbers of the service's engines, and of those that answer.
    """

    requests: float
    prompt_tokens: float
    engines: int
    answering: int


def in_time(request: RequestView, config: ServiceConfig, way: Way, now: float) -> bool:
    """Returns whether the first token of a request is expected by its target."""
    due = request.deadline
    if due == inf:
        due = request.arrived + config.picks_ttft_s + config.ttft_per_token_s * request.prompt_tokens
    return now + (way.pick.predicted_ttft_s or 0.0) <= due


def pays(request: RequestView, config: ServiceConfig, there: Way, here: Way, traffic: Traffic) -> bool:
    """Returns whether the answer should go on elsewhere.

    Args:
        there: pick of an engine of the prefill set. here: pick among the engines that answer.
    """
    saved = saves(request, config, there, here, traffic)
    if saved < 0.0 or saved > LEAST_SAVED:
        return saved > 0.0
    stays, goes = _delay(request, there), _delay(request, here)
    moved = _moved(request, here)
    if stays is None or goes is None or moved is None:
        return False  # nothing is measured yet
    weight = tokens_per_ttft(config) / max(1.0, here.load.answer_tokens)
    return weight * stays > GAIN * (MOVE_S + weight * (moved + goes))


def saves(request: RequestView, config: ServiceConfig, way: Way, here: Way, traffic: Traffic) -> float:
    """Returns the share of answers that miss their TPOT target as one set, less the share apart; 0: there is no target,
    or nothing is measured yet.

    Args:
        way: pick among all engines. here: pick among those that answer.
    """
    if config.ttft_s is None:
        return 0.0
    one = _answer(request, way)
    apart = one if here is way else _answer(request, here)
    if one is None or apart is None:
        return 0.0
    return _missed_as_one(config.tpot_s, one, traffic) - _missed_apart(config.tpot_s, apart, traffic)


class _Answer(NamedTuple):
    """A request at an engine.

    Attributes:
        computed: tokens of its prompt that are not cached. prefill_s: seconds that they take.
        tokens: of the answer. alone_s: seconds of a step of it alone. added_s: part of them that each answer adds.
    """

    sample: EngineSample
    cost: CostModel
    computed: int
    prefill_s: float
    tokens: float
    alone_s: float
    added_s: float


def _answer(request: RequestView, way: Way) -> _Answer | None:
    """Returns None while nothing is measured."""
    load, pick = way.load, way.pick
    sample, prefill_s = load.sample, pick.prefill_s
    if sample is None or sample.cost is None or prefill_s is None:
        return None
    cost, tokens, prompt_tokens = sample.cost, load.answer_tokens, request.prompt_tokens
    if tokens < 1.0:
        tokens = 1.0
    added_s = cost.decode_seq_s + cost.decode_kv_token_s * (prompt_tokens + tokens / 2)
    alone_s = cost.base_s + added_s + cost.on_curve(1) if cost.curve else cost.base_s + added_s
    return _Answer(sample, cost, prompt_tokens - pick.cached_tokens or 1, prefill_s, tokens, alone_s, added_s)


def _missed_as_one(tpot_s: float, one: _Answer, traffic: Traffic) -> float:
    """Returns the share of answers that miss the target where all engines compute prompts and answer."""
    limits = one.sample.limits
    longest_s = one.alone_s + (limits.max_num_seqs - 1) * one.added_s
    if longest_s <= tpot_s and longest_s + one.cost.prefill_seconds(limits.max_num_batched_tokens) <= tpot_s:
        return 0.0  # no step can take longer
    return _missed(tpot_s, one, _step(one, one.prefill_s, traffic, traffic.engines), one.prefill_s)


def _missed_apart(tpot_s: float, one: _Answer, traffic: Traffic) -> float:
    """Returns the share of answers that miss a target where the prefill set computes all prompts."""
    prefill_s, prompts = one.prefill_s, traffic.prompt_tokens / one.computed
    if prompts * prefill_s > MOST_SHARE * (traffic.engines - traffic.answering):
        return 1.0
    copied_s = copy_seconds(one.cost, one.computed, prefill_s)
    read_s = copied_s * (1.0 + peer_slowness(one.sample))
    if read_s > prefill_s:
        copied_s = read_s = prefill_s  # it is computed
    step_s = _step(one, copied_s, traffic, traffic.answering)
    beside = traffic.requests * one.tokens * step_s / traffic.answering
    if beside + SPARE_SLOTS > one.sample.limits.max_num_seqs:
        return 1.0
    return _missed(tpot_s, one, step_s + (MOVE_S + read_s) / one.tokens, copied_s)


def _step(one: _Answer, prompt_s: float, traffic: Traffic, engines: int) -> float:
    """Returns the mean seconds from one token of an answer to the next, at the speed of small batches; infinite: there
    are too few engines. Args: prompt_s: that each prompt takes there."""
    busy = traffic.prompt_tokens / one.computed * prompt_s + traffic.requests * one.tokens * one.added_s
    if busy >= engines:
        return inf
    step_s = (one.alone_s - one.added_s) / (1.0 - busy / engines)
    return step_s if step_s > one.alone_s else one.alone_s


def _missed(tpot_s: float, one: _Answer, mean_s: float, prompt_s: float) -> float:
    """Returns the share of answers that miss the target. Args: mean_s: TPOT of the mean answer. prompt_s: delay by each
    prompt beside an answer."""
    if mean_s >= tpot_s:
        return 1.0
    delay_s, left_s = mean_s - one.alone_s, tpot_s - one.alone_s
    share = delay_s * (delay_s + prompt_s / one.tokens) / (left_s * left_s)
    return share if share < 1.0 else 1.0


def _delay(request: RequestView, way: Way) -> float | None:
    """Returns the delay of an answer by prompts to come, and of others by it, in seconds; None: it is not known."""
    load, sample = way.load, way.load.sample
    if sample is None or sample.cost is None:
        return None
    cost, tokens, share = sample.cost, load.answer_tokens, min(MOST_SHARE, way.prefill_share)
    step_s = cost.decode_seq_s + cost.decode_kv_token_s * (request.prompt_tokens + tokens / 2)
    beside_s = (load.in_flight + load.others) * tokens * step_s
    return share / (1.0 - share) * tokens / answer_tokens_per_second(sample) + beside_s


def _moved(request: RequestView, here: Way) -> float | None:
    """Returns the delay by a hand-over to an engine, of all answers in sum, in seconds; None: it is not known. The
    engine computes the prompt where that takes less than reading it."""
    sample, computed_s = here.load.sample, here.pick.prefill_s
    if sample is None or sample.cost is None or computed_s is None:
        return None
    tokens = max(0, request.prompt_tokens - here.pick.cached_tokens)
    copied_s = copy_seconds(sample.cost, tokens, computed_s)
    read_s, others = copied_s * peer_slowness(sample), here.load.in_flight + here.load.others
    if copied_s + read_s >= computed_s:
        return computed_s * (1 + others)
    return read_s + copied_s * (1 + others)
