"""Rank of each replica for a request: the sum of its scores, and whether the replica can start the request soon
(`late_binding`).

Every score is a prediction in seconds, so weights have no unit and 1 is right for all: none needs tuning to the size of
a model, a GPU or a prompt. `predicted_ttft` is the wait of the request. `pending_tokens` and `prefix` count its two
parts once more, as the replica's backlog and the work added by this request, which delays later requests. `running` and
`kv_cache` are the cost of decoding beside the others, in seconds of TTFT by the ratio of the two targets.

All that a sample decides is computed once for each sample. `tests/gateway/pick/test_ranking.py` compares the ranks with
the plain formulas of the scores and of late binding.
"""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

from inflight_cost.model import CostModel
from inflight_gateway.pick.late_binding import LEAST_STEPS, TTFT_SHARE, has_slot, leaves_kv_cache
from inflight_gateway.pick.load import (
    DEFAULT_COST,
    EndpointLoad,
    decode_work,
    is_fresh,
    load_seconds,
    waits_for_blocks,
)
from inflight_gateway.types import EngineSample, RequestView, ScoreWeights, ServiceConfig

_MOST_REPLICAS = 10_000
"""Most replicas whose constants are kept; beyond it all are computed again."""


class Rank(NamedTuple):
    """Rank of a replica. It compares by its first three fields, which no two replicas of a pick have in common.

    Attributes:
        total: sum of the scores; lower is better. tie: order of equal totals, by the request's id.
        place: index of the replica among those ranked.
        backlog_s: seconds until its pending tokens are computed: tokens of the sample, plus tokens sent since its
            scrape began, minus tokens in prefix caches and tokens computed meanwhile.
        running_s: time that running and starting sequences add between two tokens, in seconds of TTFT.
        kv_cache_s: time that KV cache reads add between two tokens, in seconds of TTFT, plus the seconds of lost
            prefill if tokens do not fit: another request is then preempted and recomputed.
        ttft_s: backlog, then the request's own prefill, in as many steps as it takes, which the replica's decodes
            share. The step in progress when the request arrives, if any, counts half.
        own_prefill_s: seconds that the request's own prompt adds, loads from tiers of the KV cache among them: all
            later requests there wait for it.
        more_steps_s: seconds of the decodes that share its steps after the first.
        opens_s: seconds until the backlog lets the request start; 0: it does, or something else prevents the start.
    """

    total: float
    tie: int
    place: int
    backlog_s: float
    running_s: float = 0.0
    kv_cache_s: float = 0.0
    ttft_s: float = 0.0
    own_prefill_s: float = 0.0
    more_steps_s: float = 0.0
    opens_s: float = 0.0

    def scores(self, weights: ScoreWeights) -> dict[str, float]:
        """Returns the scores by name, times their weights; `total` is their sum."""
        return {
            "pending_tokens": weights.pending_tokens * self.backlog_s,
            "running": weights.running * self.running_s,
            "kv_cache": weights.kv_cache * self.kv_cache_s,
            "predicted_ttft": weights.predicted_ttft * self.ttft_s,
            "prefix": weights.prefix * self.own_prefill_s,
        }


def tokens_per_ttft(config: ServiceConfig) -> float:
    """Returns the ratio of the two targets. A second between tokens uses this many times the share of its target that a
    second before the first token uses."""
    return config.picks_ttft_s / config.tpot_s if config.tpot_s > 0 else 0.0


class _Constants:
    """Values that depend on a replica's sample and cost model alone."""

    __slots__ = (
        "budget",
        "cost",
        "decode_s",
        "fallback",
        "full_kv",
        "full_step_curve_s",
        "kv_s",
        "measured",
        "no_prefill_s",
        "room",
        "room_curve_s",
        "running",
        "sample",
        "seqs_s",
        "slots",
        "used_kv",
        "waiting_mean",
        "waiting_tokens",
    )

    def __init__(self, sample: EngineSample, fallback: CostModel | None, running: int, *, fresh: bool) -> None:
        self.sample, self.fallback, self.running = sample, fallback, running
        known = sample.cost or fallback
        self.measured = known is not None
        self.cost = cost = known or DEFAULT_COST
        decoding = decode_work(sample, running)
        self.used_kv = decoding.decode_kv_tokens
        self.slots = sample.limits.max_num_seqs
        self.budget = sample.limits.max_num_batched_tokens
        self.room = max(1.0, sample.limits.max_num_batched_tokens - running)
        self.waiting_tokens = sample.waiting_prompt_tokens if fresh else 0
        self.waiting_mean = self.waiting_tokens / sample.waiting if fresh and sample.waiting else None
        self.seqs_s = cost.base_s + cost.decode_seq_s * running
        self.kv_s = cost.decode_kv_token_s * self.used_kv
        self.decode_s = cost.seconds(decoding)
        self.room_curve_s = cost.on_curve(running + self.room)
        self.full_step_curve_s = cost.on_curve(running + self.budget)
        self.no_prefill_s = cost.prefill_seconds(0.0)
        self.full_kv = waits_for_blocks(sample)


class Ranking:
    """Keeps the constants of replicas between picks; equal arguments give equal ranks."""

    def __init__(self) -> None:
        self._constants: dict[str, _Constants] = {}

    def rank(
        self,
        usable: list[EndpointLoad],
        request: RequestView,
        config: ServiceConfig,
        fallback: CostModel | None,
        now: float,
        *,
        above_share: bool,
        below_share: bool = False,
        claimed: int = 0,
    ) -> tuple[list[Rank], list[Rank]]:
        """Returns the ranks of replicas that can start the request soon, and of the others, whose total is their
        backlog.

        Args:
            fallback: cost model of another replica of the service, for replicas that have not fitted their own.
            below_share: the request's tenant has less than its share: where KV blocks lack, the engine may let the
                request pass preempted ones of a tenant that holds more, so tokens that wait there do not count against
                the replica. It cannot pass new requests, nor any under the policy `priority`.
            claimed: slots claimed at each replica, see `late_binding.most_outstanding`.
        """
        prompt_tokens, choices, weights = request.prompt_tokens, request.choices, config.weights
        per_ttft = tokens_per_ttft(config)
        longest_wait_s = TTFT_SHARE * config.picks_ttft_s
        seed = crc32(f"{request.request_id} ".encode())
        ready: list[Rank] = []
        busy: list[Rank] = []
        for place, load in enumerate(usable):
            known = self._of(load, fallback, now)
            cost, cached, running = known.cost, load.cached_tokens, known.running
            prefill_token_s, context_token_s, curve = cost.prefill_token_s, cost.prefill_context_token_s, cost.curve
            pending = known.waiting_tokens + load.sent_tokens - load.computed_tokens
            if pending < 0:
                pending = 0
            uncached = prompt_tokens - cached
            if uncached < 1:
                uncached = 1
            attended = (prompt_tokens if known.waiting_mean is None else known.waiting_mean) / 2
            backlog_s = 0.0
            if pending:
                room = known.room
                full, rest = divmod(pending, room)
                if full:
                    backlog_s = full * (
                        known.seqs_s
                        + prefill_token_s * room
                        + known.kv_s
                        + context_token_s * (room * attended)
                        + known.room_curve_s
                    )
                if rest:
                    backlog_s += (
                        known.seqs_s
                        + prefill_token_s * rest
                        + known.kv_s
                        + context_token_s * (rest * attended)
                        + (cost.on_curve(running + rest) if curve else 0.0)
                    )
            if curve:
                own_s = cost.prefill_seconds(uncached, cached)
            else:
                own_s = prefill_token_s * uncached + context_token_s * (
                    uncached * cached + uncached * (uncached + 1) / 2
                )
            needed = uncached
            if loaded := load.loaded_tokens:
                own_s += load_seconds(cost, load)
                needed += loaded
            tie = crc32(load.endpoint.address.encode(), seed)
            outstanding, opens_s = load.in_flight + load.others, 0.0
            starts_soon = has_slot(outstanding, known.slots, choices, above_share, claimed)
            if starts_soon and pending > LEAST_STEPS * known.budget and not (below_share and known.full_kv):
                full_step_s = (
                    known.seqs_s
                    + prefill_token_s * known.budget
                    + known.kv_s
                    + context_token_s * (known.budget * attended)
                    + known.full_step_curve_s
                )
                saved_s = cost.prefill_seconds(uncached + cached) - own_s if cached else 0.0
                longest_s = max(longest_wait_s, LEAST_STEPS * full_step_s) + saved_s if known.measured else 0.0
                starts_soon = known.measured and backlog_s <= longest_s
                opens_s = 0.0 if starts_soon else backlog_s - longest_s
            if starts_soon and above_share:
                held_tokens = known.used_kv + known.sample.waiting_prompt_tokens + load.sent_tokens
                starts_soon = leaves_kv_cache(known.sample, load, held_tokens, needed, choices)
            if not starts_soon:
                busy.append(Rank(backlog_s, tie, place, backlog_s, opens_s=opens_s))
                continue
            kv_s = per_ttft * cost.decode_kv_token_s * known.used_kv
            size = known.sample.kv_cache_tokens
            if size:
                lacking = known.used_kv + pending + needed - size
                kv_s += known.no_prefill_s if lacking <= 0 else cost.prefill_seconds(min(lacking, size))
            under_way_s = known.decode_s / 2 if running or pending else 0.0
            running_s = per_ttft * cost.decode_seq_s * max(running, outstanding)
            steps = uncached / known.room
            if steps < 1.0:
                steps = 1.0
            ttft_s = under_way_s + backlog_s + own_s + known.decode_s * steps
            more_steps_s = known.decode_s * (steps - 1.0)
            total = (
                weights.pending_tokens * backlog_s
                + weights.running * running_s
                + weights.kv_cache * kv_s
                + weights.predicted_ttft * ttft_s
                + weights.prefix * own_s
            )
            ready.append(Rank(total, tie, place, backlog_s, running_s, kv_s, ttft_s, own_s, more_steps_s))
        return ready, busy

    def _of(self, load: EndpointLoad, fallback: CostModel | None, now: float) -> _Constants:
        sample, address = load.sample, load.endpoint.address
        if sample is None or not is_fresh(load, now):
            # Without a current sample, the gateway's own requests are what runs: it changes with every pick.
            return _Constants(sample or EngineSample(at=now), fallback, max(0, load.in_flight), fresh=False)
        known = self._constants.get(address)
        if known is None or known.sample is not sample or (sample.cost is None and known.fallback is not fallback):
            if len(self._constants) >= _MOST_REPLICAS:
                self._constants.clear()
            known = self._constants[address] = _Constants(sample, fallback, sample.running, fresh=True)
        return known
