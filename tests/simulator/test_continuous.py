import math
import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_cost.model import StepWork
from inflight_settings.scheduling import ServiceClass
from inflight_simulator.arrivals import Arrival, Scaling, scaled
from inflight_simulator.continuous import simulate_continuous
from inflight_simulator.cost import LLAMA_8B_H100, UnitCost, load_rates
from inflight_simulator.outcome import Phase
from inflight_simulator.passes import separate
from inflight_simulator.summary import summarize
from inflight_simulator.trace_files import read_arrivals
from tests.simulator.support import DATA, scheduler_config, together

COST = LLAMA_8B_H100


def spans(run, request_id, phase):
    return [span for span in run.timeline if (span.request_id, span.phase) == (request_id, phase)]


def outcomes(run):
    return {outcome.request_id: outcome for outcome in run.outcomes}


def test_a_prompt_of_3000_tokens_at_a_budget_of_512_is_six_chunks_the_last_of_440():
    run = simulate_continuous([Arrival(0, 3000, 10)], scheduler_config(), COST)
    assert [span.tokens for span in spans(run, 0, Phase.PREFILL)] == [512] * 5 + [440]
    assert [span.tokens for span in spans(run, 0, Phase.DECODE)] == [9]


def test_running_decodes_lose_no_step_while_a_long_prompt_is_computed():
    arrivals = [Arrival(0, 10, 100), Arrival(0, 10, 100), Arrival(0.1, 3000, 10)]
    run = simulate_continuous(arrivals, scheduler_config(), COST)
    chunks = spans(run, 2, Phase.PREFILL)
    assert sum(chunk.tokens for chunk in chunks) == 3000
    for request_id in (0, 1):
        (decode,) = spans(run, request_id, Phase.DECODE)
        assert decode.start_s < chunks[0].start_s < chunks[-1].end_s < decode.end_s
        # 99 tokens in 99 steps, so one in each.
        assert decode.tokens == 99
    assert run.num_steps == 100 + sum(chunk.start_s >= decode.end_s for chunk in chunks)
    longest = outcomes(run)[0].longest_gap
    assert longest == pytest.approx(max(chunk.end_s - chunk.start_s for chunk in chunks))


def overload(seed):
    """Poisson arrivals of 0.7 and 1.6 times a rate of 11 a second, 20 s each in turn: more than is served in time."""
    rng = random.Random(seed)
    now, arrivals = 0.0, []
    for _ in range(900):
        now += rng.expovariate(11 * (0.7, 1.6)[int(now // 20) % 2])
        arrivals.append(Arrival(now, rng.choice((200, 800, 1600, 3000)), rng.randint(20, 200)))
    return arrivals


def times_to_first_token(arrivals, **fields):
    config = scheduler_config(48, 1024, num_blocks=25_000, ttft_target=0.5, **fields)
    run = simulate_continuous(arrivals, config, COST)
    assert len(run.outcomes) == len(arrivals), "late requests are served too"
    return np.array([each.first_token_s - each.arrival.arrival_s for each in run.outcomes])


@pytest.mark.parametrize("seed", [1, 2])
def test_under_overload_deadline_keeps_the_target_for_most_where_fcfs_keeps_it_for_few(seed):
    arrivals = overload(seed)
    fcfs, deadline, fewer_late = (
        times_to_first_token(arrivals, **fields)
        for fields in ({"policy": "fcfs"}, {"policy": "deadline"}, {"policy": "deadline", "late_share": 0.01})
    )
    assert np.mean(fcfs <= 0.5) < 0.4
    assert np.mean(deadline <= 0.5) > 0.75
    # The price: late requests wait longer, the more so the fewer picks they get.
    assert np.mean(fewer_late <= 0.5) > np.mean(deadline <= 0.5)
    assert np.percentile(fewer_late, 99) > np.percentile(deadline, 99) > np.percentile(fcfs, 99)


def test_without_a_target_deadline_is_fcfs():
    arrivals = overload(3)[:300]
    runs = [simulate_continuous(arrivals, scheduler_config(policy=policy), COST) for policy in ("fcfs", "deadline")]
    assert runs[0].outcomes == runs[1].outcomes


def test_without_chunked_prefill_running_decodes_wait_for_a_whole_prompt():
    arrivals = [Arrival(0, 10, 100), Arrival(0.1, 3000, 10)]
    chunked = simulate_continuous(arrivals, scheduler_config(), COST)
    whole = simulate_continuous(arrivals, scheduler_config(max_num_batched_tokens=10**6), COST, separate(512))
    (prefill,) = spans(whole, 1, Phase.PREFILL)
    assert prefill.tokens == 3000
    alone = COST.seconds(StepWork(0, 3000, 0, 3000 * 3001 // 2, 0))
    assert prefill.end_s - prefill.start_s == pytest.approx(alone)
    assert whole.stalls == [(prefill.start_s, prefill.end_s)]
    assert chunked.stalls == []
    assert outcomes(whole)[0].longest_gap > alone > 2 * outcomes(chunked)[0].longest_gap
    # A pass for each prompt, one for each decode.
    assert whole.num_steps == 2 + 99 + sum(
        span.tokens for span in spans(whole, 1, Phase.DECODE) if span.start_s > outcomes(whole)[0].finished_s
    )


def test_without_chunked_prefill_a_pass_takes_whole_prompts_up_to_the_budget():
    arrivals = together([1] * 5, prompt_tokens=200) + together([1], prompt_tokens=900)
    run = simulate_continuous(arrivals, scheduler_config(max_num_batched_tokens=10**6), COST, separate(512))
    assert run.num_steps == 4
    starts = sorted({span.start_s for span in run.timeline})
    together_in = [[span.tokens for span in run.timeline if span.start_s == start] for start in starts]
    assert together_in == [[200, 200], [200, 200], [200], [900]]
    # Each leaves with its own pass, not with the step's last one.
    assert [outcome.finished_s for outcome in outcomes(run).values()] == [span.end_s for span in run.timeline]


def test_a_short_request_leaves_while_others_still_run():
    arrivals = [Arrival(0, 5000, 200), Arrival(0.02, 50, 10), Arrival(0.08, 200, 2000), Arrival(0.15, 100, 50)]
    a, b, c, d = (outcomes(simulate_continuous(arrivals, scheduler_config(), COST))[index] for index in range(4))
    assert b.finished_s < d.finished_s < a.finished_s < c.finished_s
    assert d.admitted_s < b.finished_s


def test_a_step_costs_what_the_model_says():
    run = simulate_continuous([Arrival(0, 100, 3)], scheduler_config(), COST)
    ends = 0.0
    for work in (StepWork(0, 100, 0, 5050, 0), StepWork(1, 0, 101, 0, 0), StepWork(1, 0, 102, 0, 0)):
        ends += COST.seconds(work)
    assert outcomes(run)[0].finished_s == pytest.approx(ends)


def test_a_preempted_request_gives_all_its_tokens_and_its_wait_is_in_the_timeline():
    # Two requests of 5 blocks in the end, in 8 blocks.
    arrivals = together([40, 40], prompt_tokens=40)
    config = scheduler_config(num_blocks=8, prefix_caching=False, preemption="recompute")
    run = simulate_continuous(arrivals, config, COST)
    assert (run.num_preemptions, run.num_loaded) == (1, 0)
    assert outcomes(run)[1].num_preemptions == 1
    (gone,) = spans(run, 1, Phase.PREEMPTED)
    first, again = spans(run, 1, Phase.DECODE)
    assert first.end_s == gone.start_s < gone.end_s < again.start_s
    (prefill, recomputed) = spans(run, 1, Phase.PREFILL)
    assert prefill.tokens == 40
    # The token after the recomputed ones is sampled by the prefill that recomputes them.
    assert recomputed.tokens == 40 + 1 + first.tokens
    assert first.tokens + again.tokens == 40 - 2
    assert outcomes(run)[1].longest_gap == pytest.approx(again.start_s - first.end_s)


def test_loads_are_counted_and_their_copies_cost_time():
    arrivals = together([40, 40], prompt_tokens=40)
    config = scheduler_config(num_blocks=8, preemption="swap", num_host_blocks=8)

    def makespan(copied_token_s):
        cost = replace(COST, copied_token_s=copied_token_s)
        run = simulate_continuous(arrivals, config, cost, rates=load_rates(cost))
        assert (run.num_preemptions, run.num_loaded) == (1, 1)
        (again,) = [span for span in spans(run, 1, Phase.PREFILL) if span.start_s > 0]
        assert again.tokens == 1
        return summarize(run).makespan_s

    lost = 32 + 16  # Of the blocks of 16 that the preempted one left two went out, and its last one came in again.
    assert makespan(1e-3) - makespan(0.0) == pytest.approx(lost * 1e-3)


def test_requests_that_can_never_fit_are_refused_and_the_others_run():
    arrivals = [Arrival(0, 30_000, 5), Arrival(0, 10, 5), Arrival(1, 10, 50_000)]
    run = simulate_continuous(arrivals, scheduler_config(), COST)
    assert [refusal.request_id for refusal in run.refusals] == [0, 2]
    assert list(outcomes(run)) == [1]


def test_a_shared_prefix_is_computed_once():
    arrivals = read_arrivals(DATA / "mooncake_conversation_50.jsonl")
    config = scheduler_config(max_num_batched_tokens=8192, num_blocks=100_000, kv_headroom=0.0)
    longest = max(arrival.total_tokens for arrival in arrivals)
    config = type(config)(**{**{f: getattr(config, f) for f in config.__slots__}, "max_model_len": longest})
    run = simulate_continuous(arrivals, config, COST)
    prompt_tokens = sum(arrival.prompt_tokens for arrival in arrivals)
    computed = sum(span.tokens for span in run.timeline if span.phase is Phase.PREFILL)
    assert run.prefix_queries == prompt_tokens
    assert run.prefix_hits == prompt_tokens - computed
    # All of them start with block 0; those of the first step cannot find it yet.
    assert run.prefix_hits >= 512 * 40


def test_prompts_without_hash_ids_share_nothing():
    run = simulate_continuous(together([5] * 20, prompt_tokens=200), scheduler_config(max_num_seqs=1), COST)
    assert run.prefix_hits == 0


def test_a_prompt_shares_nothing_with_outputs():
    arrivals = [Arrival(0, 96, 500, hash_ids=(0,)), Arrival(100, 600, 1, hash_ids=(0, 1))]
    assert simulate_continuous(arrivals, scheduler_config(), COST).prefix_hits == 96


def test_a_class_with_more_weight_waits_less():
    arrivals = [Arrival(0, 10, 20, service_class=name) for name in ("batch", "chat") * 20]
    classes = (ServiceClass("batch", weight=1.0), ServiceClass("chat", weight=8.0))
    run = simulate_continuous(arrivals, scheduler_config(max_num_seqs=2, classes=classes), UnitCost())
    mean = {
        name: sum(each.ttft for each in run.outcomes if each.arrival.service_class == name) / 20
        for name in ("batch", "chat")
    }
    assert mean["chat"] < 0.7 * mean["batch"]


def test_the_shortest_output_goes_first_under_sjf():
    run = simulate_continuous(together([30, 20, 10]), scheduler_config(max_num_seqs=1, policy="sjf"), UnitCost())
    assert [outcome.arrival.output_tokens for outcome in run.outcomes] == [10, 20, 30]


arrivals_lists = st.lists(
    st.builds(
        Arrival,
        arrival_s=st.floats(0, 30),
        prompt_tokens=st.integers(1, 300),
        output_tokens=st.integers(1, 60),
    ),
    min_size=1,
    max_size=40,
).map(lambda arrivals: scaled(arrivals, Scaling()))


@settings(max_examples=60, deadline=None)
@given(arrivals_lists, st.integers(1, 9))
def test_unit_cost_keeps_the_bounds_of_list_scheduling(arrivals, slots):
    run = simulate_continuous(arrivals, scheduler_config(slots, 10**6), UnitCost())
    lengths = [arrival.output_tokens for arrival in arrivals]
    assert max(lengths) <= run.num_steps <= sum(lengths)
    assert run.num_steps >= math.ceil(sum(lengths) / slots)
    for outcome in run.outcomes:
        length = outcome.arrival.output_tokens
        assert outcome.service_latency == pytest.approx(length)
        assert outcome.e2e_latency >= length - 1e-6
    assert max(run.series.running) <= slots


@settings(max_examples=60, deadline=None)
@given(arrivals_lists, st.integers(1, 9), st.integers(1, 400), st.integers(23, 60), st.booleans())
def test_every_token_is_computed_once_and_no_slot_is_held_twice(arrivals, slots, budget, blocks, chunked):
    passes = {} if chunked else {"passes": separate(budget)}
    config = scheduler_config(slots, budget if chunked else 10**6, num_blocks=blocks, prefix_caching=False)
    run = simulate_continuous(arrivals, config, COST, **passes)
    assert sorted(outcomes(run)) == list(range(len(arrivals)))
    for request_id, outcome in outcomes(run).items():
        arrival = outcome.arrival
        assert arrival.arrival_s <= outcome.admitted_s < outcome.first_token_s <= outcome.finished_s
        decoded = sum(span.tokens for span in spans(run, request_id, Phase.DECODE))
        prefilled = sum(span.tokens for span in spans(run, request_id, Phase.PREFILL))
        if outcome.num_preemptions == 0:
            assert decoded == arrival.output_tokens - 1
            assert prefilled == arrival.prompt_tokens
        else:
            assert prefilled >= arrival.prompt_tokens
    by_slot = {}
    for span in run.timeline:
        if span.phase is not Phase.PREEMPTED:
            by_slot.setdefault(span.slot, []).append((span.start_s, span.end_s))
    for times in by_slot.values():
        for (_, end), (start, _) in pairwise(sorted(times)):
            assert end <= start
    assert len(by_slot) <= slots
