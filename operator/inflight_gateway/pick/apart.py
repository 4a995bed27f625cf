"""Prefill and decode apart: whether an engine of the service's prefill set computes a prompt, and hands it over to the
engine that answers, or that engine computes it itself.

`Fixed`: the prefill set computes every prompt while it has an engine. `Auto`: the way that delays answers less, summed
over all of them. A prompt delays its own answer until its first token, and each answer that its engine is generating
for as long as steps compute the prompt. Handed over, it delays its own answer also while its keys and values are read,
and the others at the engine that answers only while they are copied in. So a prompt that is short or cached, or that
nobody else would wait for, is computed where it is answered, and so is one that the prefill set would start too late.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from inflight_gateway.pick.load import EndpointLoad, copy_seconds, peer_slowness
from inflight_gateway.types import Pick, RequestView, ServiceConfig

REASON = "prefill"
"""Reason of a pick of the prefill set."""

MOVE_S = 0.02
"""Seconds that a hand-over delays the answer besides its keys and values: two messages between relay and picker, and a
step of each engine."""


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
    if answering is not None and config.apart == "Auto" and not _pays(request, answering, prefill):
        return answering
    return prefill._replace(pick=replace(prefill.pick, reason=REASON, prefill=True))


def _pays(request: RequestView, answering: Way, prefill: Way) -> bool:
    """Returns whether answers wait less in sum where the prompt is handed over."""
    there, here, sample = prefill.pick, answering.pick, answering.load.sample
    if sample is None or sample.cost is None or here.predicted_ttft_s is None or there.predicted_ttft_s is None:
        return False  # nothing is measured yet
    here_s, there_s = here.prefill_s or 0.0, there.prefill_s or 0.0
    tokens = max(0, request.prompt_tokens - here.cached_tokens)
    copied_s = copy_seconds(sample.cost, tokens, here_s)
    read_s = copied_s * (1.0 + peer_slowness(sample))
    if read_s >= here_s:
        return False  # the engine that answers would compute it all the same
    others = _answers(answering.load)
    delay_here = here.predicted_ttft_s + others * here_s
    delay_there = there.predicted_ttft_s + _answers(prefill.load) * there_s + MOVE_S + read_s + others * copied_s
    return delay_there < delay_here


def _answers(load: EndpointLoad) -> int:
    """Returns the answers at a replica that a further prompt delays."""
    return load.in_flight + load.others
