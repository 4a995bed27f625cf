"""Unit cost: a step takes 1 s and prefill is free, so batching is all that counts."""

import heapq

import numpy as np
import pytest

from tests.simulator.support import EXAMPLES, simulate, together, write_csv


def textbook_lengths(seed=123, count=100):
    return np.clip(np.random.RandomState(seed).lognormal(4.0, 0.8, count).astype(int), 10, 500)


def naive_continuous(lengths, slots):
    """List scheduling, one step at a time: (steps, each request's steps in its slot)."""
    waiting, running, steps, services = list(lengths), [], 0, []
    while waiting or running:
        while waiting and len(running) < slots:
            length = waiting.pop(0)
            running.append([length, 0])
        steps += 1
        for entry in running:
            entry[1] += 1
        services += [held for length, held in running if held == length]
        running = [entry for entry in running if entry[1] < entry[0]]
    return steps, services


def naive_static(lengths, slots):
    batches = [lengths[begin : begin + slots] for begin in range(0, len(lengths), slots)]
    return sum(max(batch) for batch in batches), [max(batch) for batch in batches for _ in batch]


@pytest.fixture
def run(tmp_path, capsys):
    def run(lengths, batching, slots, *more, prompt_tokens=10):
        path = write_csv(tmp_path / "arrivals.csv", together(lengths, prompt_tokens))
        flags = ["--batching", batching, "--cost", "unit", "--max-num-seqs", str(slots), *more]
        return simulate(capsys, "engine", path, *flags)

    return run


def test_a_hundred_lognormal_outputs_at_batch_8_take_2722_steps_static_and_1148_continuous(run):
    lengths = textbook_lengths()
    static, continuous = run(lengths, "static", 8), run(lengths, "continuous", 8)
    assert (static["steps"], continuous["steps"]) == (2722, 1148)
    assert round(static["service_latency"]["mean"], 1) == 214.8
    assert round(continuous["service_latency"]["mean"], 1) == 82.2
    assert round(static["throughput_rps"], 3) == 0.037
    assert round(continuous["throughput_rps"], 3) == 0.087
    assert round(continuous["throughput_rps"] / static["throughput_rps"], 2) == 2.37
    assert round(1 - continuous["service_latency"]["mean"] / static["service_latency"]["mean"], 3) == 0.617
    assert continuous["makespan_s"] == 1148.0
    assert continuous["max_running"] == 8


@pytest.mark.parametrize(("seed", "count", "slots"), [(0, 100, 8), (1, 37, 1), (2, 250, 16), (3, 5, 8), (4, 64, 64)])
def test_other_seeds_and_sizes_agree_with_one_step_at_a_time(run, seed, count, slots):
    lengths = textbook_lengths(seed, count).tolist()
    steps, services = naive_continuous(lengths, slots)
    continuous = run(lengths, "continuous", slots)
    assert continuous["steps"] == steps
    assert continuous["service_latency"]["mean"] == pytest.approx(np.mean(services))
    assert continuous["service_latency"]["p95"] == pytest.approx(np.percentile(services, 95))
    steps, services = naive_static(lengths, slots)
    static = run(lengths, "static", slots)
    assert static["steps"] == steps
    assert static["service_latency"]["mean"] == pytest.approx(np.mean(services))
    assert static["e2e_latency"]["p50"] >= static["service_latency"]["p50"]


def test_the_naive_model_agrees_with_a_heap_of_free_slots():
    lengths = textbook_lengths().tolist()
    free = [0] * 8
    for length in lengths:
        heapq.heapreplace(free, free[0] + length)
    assert naive_continuous(lengths, 8)[0] == max(free) == 1148


@pytest.mark.parametrize("prompt_tokens", [0, 1, 700, 5000])
@pytest.mark.parametrize("batching", ["static", "continuous"])
def test_prompt_lengths_do_not_matter_even_with_a_small_budget(run, batching, prompt_tokens):
    budget = ["--max-num-batched-tokens", "4"] if batching == "continuous" else []
    result = run(textbook_lengths(), batching, 8, *budget, prompt_tokens=prompt_tokens)
    assert result["steps"] == {"static": 2722, "continuous": 1148}[batching]


def test_requests_of_one_token_leave_with_the_step_that_admits_them(run):
    result = run([1] * 10, "continuous", 4)
    assert (result["steps"], result["service_latency"]["p99"]) == (3, 1.0)
    assert result["tpot"] == {"mean": None, "p50": None, "p95": None, "p99": None}


def test_a_static_batch_gives_a_token_for_sum_of_lengths_over_slots_times_longest(run):
    lengths = [50, 500, 50, 500, 10, 20, 30, 40]
    assert run(lengths, "static", 8)["slot_efficiency"] == pytest.approx(sum(lengths) / (8 * 500))


def test_the_burst_of_short_and_long_requests(capsys):
    burst = str(EXAMPLES / "burst.csv")
    static, continuous = (
        simulate(capsys, "engine", burst, "--batching", batching, "--cost", "unit", "--max-num-seqs", "8")
        for batching in ("static", "continuous")
    )
    assert (static["steps"], continuous["steps"]) == (1000, 550)
    assert (static["service_latency"]["mean"], continuous["service_latency"]["mean"]) == (500, 275)


def test_a_request_that_comes_during_a_step_is_seen_by_the_next(tmp_path, capsys):
    path = tmp_path / "arrivals.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,3\n0.5,10,2\n10,10,1\n")
    result = simulate(capsys, "engine", str(path), "--cost", "unit")
    # Steps 0 to 3, in which the second joins at 1, and one at 10.
    assert (result["steps"], result["makespan_s"]) == (4, 11.0)
    assert result["e2e_latency"]["mean"] == pytest.approx((3 + 2.5 + 1) / 3)
    assert result["ttft"]["p50"] == 1.0
