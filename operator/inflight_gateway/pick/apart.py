"""Prefill and decode apart: whether the answer to a prompt that an engine of the prefill set computes goes on at
another engine after its first token.

`Fixed`: each does. `Auto`: all engines take requests as one set, by the same scores. An answer whose prompt went to the
prefill set goes on elsewhere where that delays answers less by far, summed over all of them:

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
from typing import NamedTuple

from inflight_gateway.pick.load import EndpointLoad, answer_tokens_per_second, copy_seconds, peer_slowness
from inflight_gateway.pick.ranking import tokens_per_ttft
from inflight_gateway.types import Pick, RequestView, ServiceConfig

REASON = "prefill"
"""Reason of a pick of the prefill set whose answer goes on elsewhere."""

MOVE_S = 0.02
"""Seconds that a hand-over counts besides its keys and values: the work of the gateway and of both engines for another
attempt."""

GAIN = 2.0
"""Least ratio of what an answer is delayed where it stays to what a hand-over and the other engine delay: both are
predictions for the whole answer, from the load at its begin."""

MOST_SHARE = 0.9
"""Largest share of an engine's time for prompts that is counted."""


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


def pays(request: RequestView, config: ServiceConfig, there: Way, here: Way) -> bool:
    """Returns whether the answer should go on elsewhere.

    Args:
        there: pick of an engine of the prefill set. here: pick among the engines that answer.
    """
    stays, goes = _delay(request, there), _delay(request, here)
    moved = _moved(request, here)
    if stays is None or goes is None or moved is None:
        return False  # nothing is measured yet
    weight = tokens_per_ttft(config) / max(1.0, here.load.answer_tokens)
    return weight * stays > GAIN * (MOVE_S + weight * (moved + goes))


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
