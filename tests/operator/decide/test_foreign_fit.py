"""Cost model of engines that report none: fitted to a series of vLLM's pages, and not used where it is not reliable."""

from dataclasses import dataclass, field
from random import Random

import pytest

from inflight_cost.model import StepWork
from inflight_operator.decide.replicas.demand import DemandHistory
from inflight_operator.decide.replicas.foreign_fit import ForeignFit
from inflight_operator.observe.metrics import parse_metrics

BASE, DECODE, PROMPT = 0.006, 40e-6, 35e-6


@dataclass
class Vllm:
    """A stand-in for the counters of a vLLM server: steps of `decodes` sequences, some of them with prompts."""

    random: Random = field(default_factory=lambda: Random(1))
    noise: float = 0.03
    requests: float = 0.0
    prompts: float = 0.0
    generated: float = 0.0
    steps: float = 0.0
    gaps: float = 0.0
    gap_seconds: float = 0.0

    def run(self, seconds, decodes, prompt_share, prompt=512):
        """Runs steps until `seconds` are over; a share of them also computes a prompt."""
        while seconds > 0:
            tokens = prompt if self.random.random() < prompt_share else 0
            took = (BASE + DECODE * decodes + PROMPT * tokens) * self.random.lognormvariate(0, self.noise)
            seconds -= took
            self.steps += 1
            self.prompts += tokens
            self.requests += tokens > 0
            self.generated += decodes + (tokens > 0)
            self.gaps += decodes
            self.gap_seconds += decodes * took

    def page(self, running):
        label = 'engine="0",model_name="m"'
        counts = {
            "time_to_first_token_seconds": (self.requests, self.requests * 0.1),
            "inter_token_latency_seconds": (self.gaps, self.gap_seconds),
            "iteration_tokens_total": (self.steps, self.prompts + self.generated),
        }
        lines = [
            f"vllm:num_requests_running{{{label}}} {running}",
            f"vllm:num_requests_waiting{{{label}}} 0",
            f"vllm:kv_cache_usage_perc{{{label}}} 0.3",
            f"vllm:generation_tokens_total{{{label}}} {self.generated}",
            f"vllm:prompt_tokens_total{{{label}}} {self.prompts}",
            f'vllm:cache_config_info{{block_size="16",{label},num_gpu_blocks="25000"}} 1.0',
        ]
        for name, (count, total) in counts.items():
            lines += [f'vllm:{name}_bucket{{{label},le="+Inf"}} {count}', f"vllm:{name}_sum{{{label}}} {total}"]
        return "\n".join(lines) + "\n"


def watched(engine, course, interval=3.0):
    """A history of one scrape for each (decodes, share of steps with a prompt) of `course`."""
    history = DemandHistory()
    for index, (decodes, share) in enumerate(course):
        engine.run(interval, decodes, share)
        sample = parse_metrics(engine.page(decodes), index * interval)
        history = history.with_samples({"a": sample}, {}, index * interval)
    return history


def varied(rounds=120, seed=2):
    random = Random(seed)
    return [(random.randint(4, 120), random.uniform(0.02, 0.5)) for _ in range(rounds)]


@pytest.mark.parametrize("seed", range(5))
def test_varied_traffic_gives_the_cost_of_a_step(seed):
    cost = watched(Vllm(Random(seed)), varied(seed=seed)).replica.cost
    for work in (StepWork(1, 0, 0, 0), StepWork(64, 0, 0, 0), StepWork(32, 512, 0, 0), StepWork(100, 2048, 0, 0)):
        true = BASE + DECODE * work.decode_seqs + PROMPT * work.prefill_tokens
        assert cost.seconds(work) == pytest.approx(true, rel=0.1)


def test_the_size_of_the_cache_and_of_requests_are_known_too():
    history = watched(Vllm(), varied())
    assert history.replica.kv_tokens == 400_000
    assert history.workload.prompt == pytest.approx(512, rel=0.05)
    assert history.points[-1].requests > 0


@pytest.mark.parametrize(
    "course",
    [
        pytest.param([(50, 0.2)] * 200, id="always the same load"),
        pytest.param([(decodes, 0.2) for decodes in range(4, 120)], id="prompts never vary"),
        pytest.param([(50, share / 200) for share in range(4, 120)], id="decodes never vary"),
        pytest.param([(decodes, decodes / 240) for decodes in range(4, 120)], id="both rise together"),
        pytest.param(varied(20), id="too short"),
    ],
)
def test_a_fit_that_traffic_cannot_tell_is_not_believed(course):
    engine = Vllm(noise=0.0)
    fit = ForeignFit()
    for decodes, share in course:
        steps = 300.0
        seconds = BASE + DECODE * decodes + PROMPT * share * 512
        fit = fit.with_interval(steps, steps * (decodes + share * 512), steps * decodes, steps, steps * seconds)
    assert fit.cost() is None
    assert watched(engine, course[:1]).replica is None


def test_a_fit_that_explains_little_is_not_believed():
    random, fit = Random(3), ForeignFit()
    for _ in range(200):
        decodes, prompts = random.uniform(4, 120), random.uniform(5, 300)
        fit = fit.with_interval(
            300.0, 300 * (decodes + prompts), 300 * decodes, 300.0, 300 * random.uniform(0.005, 0.1)
        )
    assert fit.cost() is None


def test_coefficients_are_never_below_zero():
    random, fit = Random(4), ForeignFit()
    for _ in range(200):
        decodes, prompts = random.uniform(4, 120), random.uniform(5, 300)
        seconds = 0.02 - 2e-5 * decodes + 4e-5 * prompts
        fit = fit.with_interval(300.0, 300 * (decodes + prompts), 300 * decodes, 300.0, 300 * seconds)
    cost = fit.cost()
    assert cost is None or min(cost.base_s, cost.decode_seq_s, cost.prefill_token_s) >= 0


def test_intervals_of_an_idle_engine_tell_nothing():
    fit = ForeignFit()
    assert fit.with_interval(0.0, 0.0, 0.0, 0.0, 0.0) is fit
    assert fit.with_interval(3.0, 500.0, 10.0, 9.0, 0.1) is fit


def test_another_machine_is_learned_as_the_old_one_is_forgotten():
    random, fit = Random(5), ForeignFit()
    for index in range(1600):
        decodes, prompts = random.uniform(4, 120), random.uniform(5, 300)
        seconds = (BASE + DECODE * decodes + PROMPT * prompts) * (1 if index < 200 else 2)
        fit = fit.with_interval(300.0, 300 * (decodes + prompts), 300 * decodes, 300.0, 300 * seconds)
    assert fit.cost().base_s == pytest.approx(2 * BASE, rel=0.05)
