"""The numbers that rank replicas are those of the formulas, bit for bit, for any state."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_cost.model import CostModel
from inflight_gateway.pick.growth import Growing, Growth
from inflight_gateway.pick.load import DISK_SLOWNESS, LOAD_SHARE, STALE_S, EndpointLoad
from inflight_gateway.pick.ranking import Ranking
from inflight_gateway.types import Endpoint, EngineSample, ScoreWeights
from inflight_settings.limits import Limits
from tests.gateway.pick.formulas import predicted_ttft_seconds, replica_state, scores
from tests.gateway.pick.loads import CONFIG, NOW, request
from tests.gateway.pick.starting import can_start_soon

COUNT = st.integers(0, 300)
TOKENS = st.integers(0, 200_000)
FACTOR = st.floats(0, 1e-3)
CURVE = st.lists(
    st.tuples(st.sampled_from((0.5, 1.0)) | st.floats(0.1, 5000), st.floats(0, 0.1)),
    max_size=4,
    unique_by=lambda point: point[0],
)
COST = st.builds(
    CostModel,
    FACTOR,
    FACTOR,
    FACTOR,
    FACTOR,
    FACTOR,
    st.just(0.0) | FACTOR,
    curve=CURVE.map(lambda points: tuple(sorted(points))),
)
SAMPLE = st.builds(
    EngineSample,
    at=st.floats(NOW - 2 * STALE_S, NOW),
    running=COUNT,
    waiting=COUNT,
    waiting_prompt_tokens=TOKENS,
    kv_utilization=st.floats(0, 1),
    kv_cache_tokens=TOKENS,
    limits=st.builds(Limits, st.integers(1, 300), st.integers(1, 9000)),
    cost=st.none() | COST,
    disk_slowness=st.just(0.0) | st.floats(0.1, 100),
)
LOAD = st.builds(
    lambda *fields, loaded_share, disk_share, **named: EndpointLoad(
        *fields,
        **named,
        loaded_tokens=(loaded := int(loaded_share * named["cached_tokens"])),
        disk_tokens=int(disk_share * loaded),
    ),
    st.builds(Endpoint, st.text("0123456789.:", min_size=1), st.just("pod")),
    st.none() | SAMPLE,
    in_flight=COUNT,
    sent_tokens=TOKENS,
    cached_tokens=st.integers(0, 9000),
    computed_tokens=TOKENS,
    others=COUNT,
    growth=st.none() | st.builds(Growth, st.lists(st.builds(Growing, left=COUNT, held=TOKENS), max_size=4)),
    answer_tokens=COUNT,
    loaded_share=st.sampled_from((0, 0, 0.5, 1)),
    disk_share=st.sampled_from((0, 0.5, 1)),
)
WEIGHT = st.floats(0, 3)
CONFIGS = st.builds(
    lambda ttft_s, tpot_s, weights: replace(CONFIG, ttft_s=ttft_s, tpot_s=tpot_s, weights=weights),
    st.floats(0, 10),
    st.just(0.0) | st.floats(1e-4, 1),
    st.builds(ScoreWeights, WEIGHT, WEIGHT, WEIGHT, WEIGHT, WEIGHT),
)


@given(
    st.lists(LOAD, max_size=6),
    CONFIGS,
    st.integers(0, 20_000),
    st.none() | COST,
    st.sampled_from((-1, 0, 1)),
    st.integers(0, 99),
    st.sampled_from((1, 4, 500)),
)
def test_ranks_are_the_sums_of_the_scores_and_the_same_replicas_can_start(
    loads, config, tokens, fallback, share, claimed, choices
):
    above, below = share > 0, share < 0
    asked, ranking = request(prompt_tokens=tokens, choices=choices), Ranking()
    # Twice: the second time with what is known of each sample.
    for _ in range(2):
        ready, busy = ranking.rank(
            loads, asked, config, fallback, NOW, above_share=above, below_share=below, claimed=claimed
        )
        states = [replica_state(load, asked, fallback, NOW) for load in loads]
        can = [can_start_soon(state, config.ttft_s, above, below, claimed, choices) for state in states]
        assert {rank.place: rank.total for rank in ready} == {
            place: sum(scores(state, config).values()) for place, state in enumerate(states) if can[place]
        }
        assert {rank.place: rank.total for rank in busy} == {
            place: state.backlog_s for place, state in enumerate(states) if not can[place]
        }
        for rank in ready:
            assert rank.scores(config.weights) == scores(states[rank.place], config)
            assert rank.ttft_s == predicted_ttft_seconds(states[rank.place])
            assert rank.own_prefill_s == states[rank.place].own_prefill_s
        assert all(rank.backlog_s == states[rank.place].backlog_s for rank in (*ready, *busy))


@given(SAMPLE, SAMPLE, st.none() | COST, st.none() | COST)
def test_a_new_sample_or_another_fallback_is_not_judged_by_the_old_one(first, second, fallback, other):
    asked, kept = request(), Ranking()
    for sample, cost in ((first, fallback), (second, fallback), (second, other)):
        loads = [EndpointLoad(Endpoint("a", "pod"), sample)]
        assert kept.rank(loads, asked, CONFIG, cost, NOW, above_share=False) == Ranking().rank(
            loads, asked, CONFIG, cost, NOW, above_share=False
        )


def test_a_prompt_behind_a_device_is_worth_what_loading_it_saves_there():
    def added_s(copied_token_s, cached, loaded):
        cost = CostModel(1e-3, 0.0, 1e-4, 0.0, 0.0, copied_token_s)
        load = EndpointLoad(Endpoint("a", "pod"), EngineSample(NOW, cost=cost), cached_tokens=cached)
        ready, _ = Ranking().rank(
            [load._replace(loaded_tokens=loaded)], request(prompt_tokens=1000), CONFIG, None, NOW, above_share=False
        )
        return ready[0].own_prefill_s

    on_device, nowhere = added_s(1e-5, 999, 0), added_s(1e-5, 0, 0)
    assert added_s(1e-5, 999, 900) == pytest.approx(on_device + 900e-5)
    assert added_s(0.0, 999, 900) == pytest.approx(on_device + LOAD_SHARE * 900e-4)  # not measured
    assert added_s(1.0, 999, 999) == pytest.approx(nowhere)  # the engine computes it instead


def test_a_prompt_on_a_disk_takes_the_time_of_the_disk_too():
    cost = CostModel(1e-3, 0.0, 1e-4, 0.0, 0.0, 1e-6)

    def rank(*replicas):
        """Own prefill seconds of replicas with 900 of 1,000 tokens behind their devices, and the one that is chosen."""
        loads = [
            EndpointLoad(
                Endpoint(f"{place}", "pod"),
                EngineSample(NOW, cost=cost, disk_slowness=slowness),
                cached_tokens=900,
                loaded_tokens=900,
                disk_tokens=on_disk,
            )
            for place, (on_disk, slowness) in enumerate(replicas)
        ]
        ready, _ = Ranking().rank(loads, request(prompt_tokens=1000), CONFIG, None, NOW, above_share=False)
        return [each.own_prefill_s for each in ready], min(ready).place

    seconds, best = rank((0, 6.0), (900, 6.0), (450, 6.0), (900, 0.0), (900, 1e6))
    assert seconds == pytest.approx(
        [0.01 + 900e-6 * (1 + slower) for slower in (0, 6, 3, DISK_SLOWNESS)] + [0.01 + 900e-4]
    )
    assert best == 0
    assert rank((900, 6.0), (900, 2.0))[1] == 1
