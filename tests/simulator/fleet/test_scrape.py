"""Pods' metrics agree with the simulation."""

from itertools import pairwise

import numpy as np
import pytest

from inflight_cost.model import StepWork
from inflight_operator.observe.metrics import Sample
from inflight_simulator.fleet.config import FleetConfig, ReplicaModel
from inflight_simulator.fleet.control import scraped
from inflight_simulator.fleet.run import run_fleet
from tests.simulator.fleet.test_naive import CASES, random_requests


class Scrapes:
    """All samples of all pods, every second."""

    interval_s = 1.0

    def __init__(self):
        self.samples: list[tuple[str, Sample]] = []
        self.fleet = None

    def update(self, fleet, now):
        self.fleet = fleet
        self.samples += [(pod.name, scraped(pod, fleet.config, now)) for pod in fleet.live]

    def last(self):
        """Samples after everything has ended."""
        return [scraped(pod, self.fleet.config, 1e6) for pod in self.fleet.pods]


def watched(config, requests):
    scrapes = Scrapes()
    return run_fleet(requests, config, [scrapes]), scrapes


@pytest.mark.parametrize("name", ["heavy", "short of blocks"])
def test_counters_and_histograms_count_every_request_and_token_once(name):
    config, requests = CASES[name]
    run, scrapes = watched(config, requests)
    (last,) = scrapes.last()
    count = len(requests)
    assert last.arrived == last.ttft.count == count
    assert last.arrived_tokens == requests.prompt_tokens.sum()
    assert last.arrived_squares == (requests.prompt_tokens**2).sum()
    assert last.generation_tokens == requests.output_tokens.sum()
    assert last.itl.count == requests.output_tokens.sum() - count
    assert last.tpot.count == (requests.output_tokens > 1).sum()
    assert last.ttft.total == pytest.approx(run.ttft.sum())
    gaps = run.tpot * (requests.output_tokens - 1)
    assert last.itl.total == pytest.approx(gaps.sum())
    assert last.preemptions == run.preemptions
    assert (last.running, last.waiting, last.waiting_prompt_tokens, last.kv_usage) == (0, 0, 0, 0.0)


def test_samples_never_count_backwards():
    _, scrapes = watched(*CASES["heavy"])
    samples = [sample for _, sample in scrapes.samples]
    for before, after in pairwise(samples):
        assert after.generation_tokens >= before.generation_tokens
        assert after.ttft.count >= before.ttft.count
        assert all(one >= other for one, other in zip(after.itl.counts, before.itl.counts, strict=True))
        assert after.prompt_tokens >= before.prompt_tokens


def test_gauges_show_what_runs_and_waits_at_the_moment():
    config, requests = CASES["heavy"]
    run, scrapes = watched(config, requests)
    ended = requests.arrival_s + run.ttft + run.tpot * np.maximum(1, requests.output_tokens - 1)
    for _, sample in scrapes.samples:
        there = (requests.arrival_s < sample.time) & (ended > sample.time)
        assert sample.running + sample.waiting == there.sum()
        assert sample.running <= config.limits.max_num_seqs


def test_the_fitted_cost_model_predicts_steps():
    _, scrapes = watched(FleetConfig(), random_requests(1500, 12, 9, prompt=900, output=150))
    samples = [sample for _, sample in scrapes.samples if sample.cost is not None]
    assert samples[0].time < 20
    cost, true = samples[-1].cost, ReplicaModel().cost
    for work in (StepWork(20, 0, 20_000, 0), StepWork(20, 1000, 20_000, 500_000), StepWork(40, 0, 50_000, 0)):
        assert cost.seconds(work) == pytest.approx(true.seconds(work), rel=0.05)
    assert samples[-1].cost_error < 0.04


def test_output_lengths_are_not_biased_by_requests_that_still_run():
    requests = random_requests(1500, 12, 10, output=300)
    _, scrapes = watched(FleetConfig(), requests)
    last = scrapes.samples[-1][1]
    assert last.output_mean == pytest.approx(requests.output_tokens.mean(), rel=0.1)
    assert last.output_square == pytest.approx((requests.output_tokens**2.0).mean(), rel=0.25)
