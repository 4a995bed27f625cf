"""A disk behind the host memory of simulated replicas."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_cost.model import CostModel
from inflight_engine.cache.tiers import Content
from inflight_engine.disk.work import MOST_WRITES
from inflight_engine.tier_loads import Read
from inflight_settings.limits import Limits
from inflight_simulator.cost import load_rates
from inflight_simulator.fleet.config import FleetConfig
from inflight_simulator.fleet.fleet import Fleet
from inflight_simulator.fleet.replicas.disk import Device, DiskTier, SimulatedDisk
from inflight_simulator.fleet.replicas.replica import scheduler_config
from inflight_simulator.fleet.replicas.scheduler import FleetScheduler
from inflight_simulator.fleet.requests import Requests
from inflight_simulator.fleet.run import run_fleet, simulate_fleet
from inflight_simulator.fleet.view import Fixed
from tests.simulator.fleet.test_host_memory import BLOCK, TURN, conversations, model, requests_of, same
from tests.simulator.fleet.test_naive import Looks

FAST = 1e-6
"""Seconds to read a token, of which the reference replica computes one in 30 us."""


def with_disk(replica, disk_blocks, read_token_s=FAST, write_token_s=FAST):
    rates = {"disk_read_token_s": read_token_s, "disk_write_token_s": write_token_s}
    return replace(replica, disk_tokens=disk_blocks * BLOCK, **rates)


def test_turns_whose_blocks_left_host_memory_find_them_on_the_disk():
    requests = requests_of(conversations(30, 5, rate=4, seed=2, most_output=8))

    def run(replica):
        return simulate_fleet(requests, FleetConfig(replica=replica), Fixed(1))

    without, with_it = run(model(60, 100)), run(with_disk(model(60, 100), 3000))
    everything = run(model(60, 3000))
    assert with_it.prefix_hits > 1.5 * without.prefix_hits
    assert with_it.prefix_hits > 0.9 * everything.prefix_hits
    assert with_it.ttft.mean() < without.ttft.mean()


def test_a_disk_that_reads_more_slowly_than_prompts_are_computed_is_left_alone_once_that_is_known():
    requests = requests_of(conversations(30, 5, rate=4, seed=2, most_output=8))
    without = simulate_fleet(requests, FleetConfig(replica=model(60, 100)), Fixed(1))
    slow = with_disk(model(60, 100), 3000, read_token_s=1e-3)
    run = simulate_fleet(requests, FleetConfig(replica=slow), Fixed(1))
    later = slice(len(requests) // 2, None)
    assert run.ttft[later].mean() == pytest.approx(without.ttft[later].mean(), rel=0.01)
    assert run.prefix_hits < 1.1 * without.prefix_hits


@pytest.mark.parametrize(
    ("read_token_s", "waits_s", "num_computed"),
    [
        pytest.param(0.005, 72 * 0.005, 8, id="until its blocks are there"),
        pytest.param(0.11, 7.2, 16, id="as long as computing them takes, then begins with those that have come"),
        pytest.param(0.2, 7.2, 80, id="as long as computing them takes, though none has come"),
    ],
)
def test_a_request_waits_for_its_blocks_while_others_go_on(read_token_s, waits_s, num_computed):
    """Five prompts of 80 tokens push each other out of a cache of 96 and host memory of 160 tokens; the first comes
    again. A token takes 0.1 s to compute, and nothing else takes any time."""
    prompts = [*range(5), 0]
    requests = Requests(
        np.array([*range(0, 600, 100), 500.05]),
        np.array([80] * len(prompts) + [1]),
        np.ones(len(prompts) + 1, np.int64),
        (*((2 * each, 2 * each + 1) for each in prompts), (99,)),
        hash_tokens=TURN,
    )
    cost = CostModel(1e-9, 1e-9, 0.1, 0.0, 0.0)
    replica = replace(with_disk(model(12, 20), 100, read_token_s), cost=cost)
    run = simulate_fleet(requests, FleetConfig(replica=replica), Fixed(1))
    assert run.ttft[5:].tolist() == pytest.approx([waits_s + 0.1 * num_computed, 0.1])
    assert run.prefix_hits == 80 - num_computed


def test_a_request_that_waits_for_the_disk_counts_as_waiting_with_its_prompt():
    """The load of the test above: it waits for 3.6 s, and 8 tokens are computed."""
    prompts = [*range(5), 0, 9]
    requests = Requests(
        np.arange(0.0, 700, 100),
        np.full(len(prompts), 80),
        np.ones(len(prompts), np.int64),
        tuple((2 * each, 2 * each + 1) for each in prompts),
        hash_tokens=TURN,
    )
    replica = replace(with_disk(model(12, 20), 100, 0.05), cost=CostModel(1e-9, 1e-9, 0.1, 0.0, 0.0))
    seen = {}

    class Notes:
        interval_s = 1.0

        def update(self, fleet: Fleet, now: float) -> None:
            one = fleet.live[0].replica
            seen[now] = one.num_waiting, one.pending_tokens, one.tokens_ahead

    run_fleet(requests, FleetConfig(replica=replica), [Notes()])
    assert seen[502.0] == seen[503.0] == (1, 80, 80)
    assert seen[590.0] == (0, 0, 0)


def test_reads_begin_when_a_request_arrives_though_all_slots_are_taken():
    """A request decodes for 7 s, a token in 1 s. The next comes in the third of them, and its blocks take 2 s."""
    requests = Requests(
        np.array([*range(0, 2400, 400), 2400.0, 2404.5]),
        np.array([80, *[300] * 5, 1, 80]),
        np.array([1] * 6 + [8, 1]),
        tuple(tuple(range(10 * each, 10 * each + 8)) for each in (*range(7), 0)),
        hash_tokens=TURN,
    )
    replica = with_disk(model(130, 60), 400, 2 / 72)
    replica = replace(replica, cost=CostModel(1.0, 1e-9, 1.0, 0.0, 0.0))
    run = simulate_fleet(requests, FleetConfig(replica=replica, limits=Limits(1, 2048)), Fixed(1))
    assert run.prefix_hits == 72
    assert run.ttft[7] == pytest.approx(4.5 + 9)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 12),
    st.integers(1, 6),
    st.floats(1, 200),
    st.integers(40, 120),
    st.sampled_from([7, 60]),
    st.sampled_from([5, 50, 400]),
    st.sampled_from([FAST, 2e-5, 1e-4, 1e-2]),
    st.sampled_from([FAST, 1e-3]),
    st.sampled_from([3e-5, 1e-3]),
    st.integers(0, 10**6),
)
def test_runs_of_steps_end_where_a_request_has_its_blocks(
    count, turns, rate, kv_blocks, host_blocks, disk_blocks, read_token_s, write_token_s, prefill_token_s, seed
):
    requests = requests_of(conversations(count, turns, rate=rate, seed=seed))
    replica = with_disk(model(kv_blocks, host_blocks), disk_blocks, read_token_s, write_token_s)
    replica = replace(replica, cost=replace(replica.cost, prefill_token_s=prefill_token_s))
    config = FleetConfig(replica=replica, limits=Limits(6, 64))
    run = simulate_fleet(requests, config, Fixed(1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FleetScheduler, "steady_steps", lambda scheduler: 0)
        stepped = simulate_fleet(requests, config, Fixed(1))
    np.testing.assert_allclose(run.ttft, stepped.ttft, rtol=0, atol=1e-9)
    np.testing.assert_allclose(run.tpot, stepped.tpot, rtol=0, atol=1e-9)
    assert run.prefix_hits == stepped.prefix_hits


def test_equal_runs_with_a_disk_give_equal_results_whether_metrics_are_read_or_not():
    requests = requests_of(conversations(20, 4, rate=50, seed=5))

    replica = replace(with_disk(model(90, 20), 500, 2e-5), noise=0.03)
    config = FleetConfig(replica=replica, limits=Limits(8, 64))
    first = run_fleet(requests, config, [])
    assert same(first, run_fleet(requests, config, []))
    assert same(first, run_fleet(requests, config, [Looks(0.013)]))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 12), st.integers(1, 5), st.floats(1, 200), st.sampled_from([0, 60]), st.integers(0, 10**6))
def test_without_blocks_on_a_disk_nothing_changes(count, turns, rate, host_blocks, seed):
    """A disk that has room for no block, or is behind no host memory."""
    requests = requests_of(conversations(count, turns, rate=rate, seed=seed))
    plain = model(60, host_blocks)
    run = simulate_fleet(requests, FleetConfig(replica=plain), Fixed(2))
    rates_only = with_disk(plain, 0)
    assert same(run, simulate_fleet(requests, FleetConfig(replica=rates_only), Fixed(2)))
    if not host_blocks:
        assert same(run, simulate_fleet(requests, FleetConfig(replica=with_disk(plain, 500)), Fixed(2)))


NAMES = [b"%d" % number for number in range(1000)]
CONTENTS = [Content(name, 1) for name in NAMES]


@pytest.fixture
def disk():
    """A disk of three blocks that reads one in 1 s and writes one in 2 s; place n of host memory has content n."""
    device = Device(with_disk(model(60, 60), 3, 1 / BLOCK, 2 / BLOCK))
    return SimulatedDisk(device, dict(enumerate(CONTENTS)).get)


def has(disk):
    return [number for number, name in enumerate(NAMES) if disk.finds(None, name)]


def test_a_block_that_leaves_the_device_again_counts_as_used_on_the_disk():
    config = FleetConfig(replica=with_disk(model(60, 60), 3))
    scheduler = FleetScheduler(scheduler_config(config, 200, prefix_caching=True))
    offload, tier = scheduler.offload, DiskTier(config.replica, scheduler)
    offload.rates = load_rates(config.replica.cost)
    for step, evicted in enumerate(([0, 1, 2], [0], [3])):
        tier.advance(float(step))
        scheduler.running.pool.offload(np.array(evicted), [NAMES[each] for each in evicted])
        offload.plan(step)
        offload.take_in(step)
    tier.advance(3.0)
    assert has(tier._disk) == [0, 2, 3]


def test_a_block_has_taken_as_long_as_it_is_under_way(disk):
    disk.advance(10.0)
    disk.store([0], CONTENTS[:1])
    disk.advance(10.0)
    assert disk.stalled == 0.0
    disk.advance(11.5)
    assert disk.stalled == 1.5
    disk.advance(12.0)
    assert disk.stalled == 0.0


def test_a_read_goes_before_the_writes_that_wait_and_is_done_when_its_blocks_are(disk):
    disk.store([0, 1], CONTENTS[:2])
    disk.advance(10.0)
    disk.advance(14.0)
    disk.store([2, 3], CONTENTS[2:4])
    disk.advance(14.0)
    disk.load(Read(7, NAMES[:2], [8, 9]))
    assert disk.next_s == 16.0, "the write that has begun ends"
    disk.advance(16.0)
    assert disk.next_s == 18.0
    disk.advance(17.9)
    assert not disk.ready
    disk.advance(18.0)
    assert [(each.number, len(each.checksums)) for each in disk.take()] == [(7, 2)]
    assert disk.seconds_per_block == 1.0


def test_blocks_that_come_faster_than_the_disk_writes_are_not_written_once_too_many_wait(disk):
    many = MOST_WRITES + 5
    disk.store(range(many), CONTENTS[:many])
    assert disk.num_dropped == 5
    disk.advance(1e6)
    assert has(disk) == list(range(many - 8, many - 5))
