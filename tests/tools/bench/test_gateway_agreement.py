"""The simulation beside the routing that `python -m tools.bench.gateway routing` measures."""

from dataclasses import replace

import numpy as np
import pytest

from inflight_cost.model import CostModel
from inflight_operator.observe.metrics import parse_metrics
from inflight_settings.limits import Limits
from inflight_simulator.fleet.request_states import RequestStates
from inflight_simulator.fleet.requests import Requests
from tools.bench.gateway.conversations import BLOCK_TOKENS, turns
from tools.bench.gateway.simulated import POLICIES, replica_model, simulate

PAGE = """\
vllm:num_requests_running 0
vllm:num_requests_waiting 0
vllm:kv_cache_usage_perc 0
inflight_kv_cache_tokens 24000
inflight_step_cost_error_ratio 0.2
"""
NO_FIT = parse_metrics(PAGE, 0.0)


def fitted(factor):
    return replace(NO_FIT, cost=CostModel(0.01 * factor, 0.003 * factor, 0.001 * factor, 0.0, 0.0))


def test_the_replica_in_the_middle_is_simulated_and_one_without_a_fit_is_left_out():
    assert replica_model([fitted(9), NO_FIT, fitted(1), fitted(2)]).cost == fitted(2).cost
    assert replica_model([fitted(1)]).kv_tokens == 24_000
    with pytest.raises(RuntimeError, match="cost model"):
        replica_model([NO_FIT])


def test_the_simulated_prompts_share_what_the_sent_prompts_share():
    load = turns(240.0, 49_152)[:40]
    columns = [[len(each.prompt) for each in load], [each.output_tokens for each in load]]
    at, ids = [each.at_s for each in load], tuple(each.hash_ids for each in load)
    simulated = RequestStates(Requests.sorted(*map(np.array, (at, *columns)), ids, BLOCK_TOKENS))

    def shared(one, other):
        return next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)

    for place in range(1, len(load)):
        now, before = (simulated.prompt_token_ids(number).tolist() for number in (place, place - 1))
        assert shared(now, before) == shared(load[place].prompt, load[place - 1].prompt)


def test_each_policy_serves_the_whole_load():
    rows = simulate(turns(240.0, 49_152)[:30], replica_model([fitted(1)]), 2, Limits(16, 256), 0.5)
    assert tuple(row.policy for row in rows) == POLICIES
    assert all(0 < row.ttft_p50 <= row.ttft_p95_high for row in rows)
