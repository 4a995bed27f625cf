"""The error of a fit in steps that it has not seen."""

import contextlib

import numpy as np
import pytest

from inflight_cost.model import CostModel, StepWork
from tools.bench import vllm_plugin
from tools.bench.vllm_plugin import Pair, Run, held_out, verdict


def test_the_error_of_unseen_steps_is_the_noise_of_the_machine():
    rng = np.random.default_rng(1)
    cost = CostModel(0.004, 0.0005, 0.0001, 1e-6, 1e-8)
    works = np.column_stack(
        [rng.integers(0, 17, 900), rng.integers(0, 128, 900), *rng.uniform(0, 4000, (2, 900)), np.zeros(900)]
    )
    exact = np.array([cost.seconds(StepWork(*work)) for work in works])
    assert held_out(works, exact).median < 0.01
    noisy = held_out(works, exact * rng.lognormal(0, 0.2, 900))
    assert noisy.median == pytest.approx(0.135, abs=0.03)
    assert noisy.p90 > 0.25
    assert 200 < noisy.steps < 340


def pair(plain, plugin, own_us):
    return Pair(Run(plain, 4e-3, 2e-4, None), Run(plugin, 4e-3, 3e-4, own_us / 1e6))


@pytest.mark.parametrize(("plugin", "own_us", "good"), [(98, 40, True), (96, 40, False), (98, 60, False)])
def test_the_median_pair_and_the_own_time_decide(plugin, own_us, good):
    pairs = [pair(100, 50, 1000), pair(100, plugin, own_us), pair(200, 2 * plugin, own_us), pair(100, 150, 0)]
    found, figures = verdict([*pairs, pair(50, plugin / 2, own_us)])
    assert found == good
    assert (figures["ratio"], figures["own_s"]) == (pytest.approx(plugin / 100), pytest.approx(own_us / 1e6))
    assert (figures["cpu"], figures["api"]) == (pytest.approx(1), pytest.approx(1.5))


def test_loads_take_turns_and_servers_start_anew(monkeypatch):
    loads, starts = [], []

    @contextlib.contextmanager
    def both(number):
        starts.append(number)
        yield {False: "plain", True: "plugin"}

    def measured(server, *, plugin, seed):
        loads.append((server, seed))
        return Run(100 - plugin, 1.0, 1.0, 1e-5 if plugin else None)

    monkeypatch.setattr(vllm_plugin, "_both", both)
    monkeypatch.setattr(vllm_plugin, "measured", measured)
    good, figures = vllm_plugin.overhead(6)
    assert good
    assert figures["ratio"] == 0.99
    assert [server for server, _ in loads[:4]] == ["plain", "plugin", "plugin", "plain"]
    assert [seed for _, seed in loads] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]
    assert starts == [0, 4]
