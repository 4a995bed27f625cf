"""Late binding: whether a replica can start a request soon, or the gateway should hold it.

Requests queued in an engine are bound to it: a replica that becomes ready a second later cannot serve them. So the
gateway sends an engine only as much work as keeps it busy until the next scrape, plus the work that its prefix cache
saves: a new replica would have to compute that first.
"""

from __future__ import annotations

from inflight_gateway.pick.growth import NO_GROWTH
from inflight_gateway.pick.load import EndpointLoad
from inflight_gateway.types import EngineSample

TTFT_SHARE = 0.25
"""Share of `ServiceConfig.picks_ttft_s` that a request may wait in an engine's queue: with a larger share, even
requests that are sent in time come too late in an overload. The queue must not run dry while the gateway's estimate is
off: a sample is up to a second old, and the cost model some ten percent wrong over that second."""

LEAST_STEPS = 2
"""Full steps that may be queued, however long they take."""

SPARE_SLOTS = 0.0625
"""Share of the slots for which a successor may wait in the engine, so that a slot is not empty between the end of a
request and the arrival of the next. A tenant above its share leaves at least as many slots free instead: beside a
tenant that floods, the requests of others then find a slot at once."""

MOST_FREE = 0.25
"""Share of the slots that a tenant above its share leaves free at most, however many requests of others came at once:
beyond it an idle slot costs more than the rare wait that it avoids."""

FREE_KV_CACHE = 0.1
"""Share of the KV cache that a tenant above its share leaves free, now and when its answers have grown: a request of
others that finds the cache full waits, or is preempted as the youngest, for as long as an answer takes."""

GROWTH_MARGIN = 1.25
"""Factor of the expected growth. Lengths are not known exactly, and without a margin answers of equal lengths
start together, end together, and leave half of the cache empty on average."""


def most_outstanding(max_num_seqs: int, above_share: bool = False, claimed: int = 0) -> int:
    """Returns the choices of requests that may be at a replica, running or queued, counting another one of a tenant.

    Args:
        claimed: slots of the replica that other tenants claim, which are not above their share
            (`TenantShares.claimed`).
    """
    spare = max(1, int(max_num_seqs * SPARE_SLOTS))
    if not above_share:
        return max_num_seqs + spare
    return max(1, max_num_seqs - max(spare, min(claimed, int(max_num_seqs * MOST_FREE))))


def has_slot(outstanding: int, max_num_seqs: int, choices: int, above_share: bool = False, claimed: int = 0) -> bool:
    """Returns whether a request finds a slot: of many choices, which take a slot each, the last ones may wait in the
    engine, but not in the slots that a tenant above its share leaves free. A request of any size starts at an idle
    replica.

    Args:
        outstanding: choices at the replica, running or queued. The other arguments are those of `most_outstanding`.
    """
    most = most_outstanding(max_num_seqs, above_share, claimed)
    return outstanding + (min(choices, most) if above_share else 1) <= most


def slots_worth(load: EndpointLoad, prompt_tokens: int, choices: int = 1) -> int:
    """Returns the slots whose part of the KV cache a request fills at the end of its answers: at least one for each
    choice, which it takes.

    Args:
        load: load of its replica. prompt_tokens: tokens that the replica computes.
    """
    sample = load.sample
    if sample is None or not sample.kv_cache_tokens:
        return choices
    tokens = prompt_tokens + choices * load.answer_tokens
    return max(choices, round(tokens * sample.limits.max_num_seqs / sample.kv_cache_tokens))


def leaves_kv_cache(
    sample: EngineSample, load: EndpointLoad, held_tokens: float, needed_tokens: int, choices: int = 1
) -> bool:
    """Returns whether `FREE_KV_CACHE` is expected to stay free until all running answers have ended. A request of any
    length starts at a replica that holds no tokens.

    Args:
        sample, load: state of the replica; the load's growth begins at the sample.
        held_tokens: tokens in the cache, waiting or sent since the sample. Requests that have ended since then still
            count.
        needed_tokens: tokens of the request's prompt that the replica would compute or load.
    """
    if not held_tokens or not sample.kv_cache_tokens:
        return True
    room = (1 - FREE_KV_CACHE) * sample.kv_cache_tokens - held_tokens - needed_tokens
    # The other choices add their whole answers at most.
    room = room / GROWTH_MARGIN - (choices - 1) * load.answer_tokens
    return (load.growth or NO_GROWTH).fits(room, needed_tokens, load.answer_tokens)
