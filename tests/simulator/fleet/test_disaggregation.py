"""Replicas that compute prompts for others, which go on with the answers."""

from dataclasses import replace

import numpy as np
import pytest

from inflight_gateway.discovery.service_config import read_service
from inflight_gateway.pick.load import PEER_SLOWNESS
from inflight_settings.limits import Limits
from inflight_simulator.cli import main
from inflight_simulator.fleet.config import (
    FleetConfig,
    GatewayModel,
    PrefillSet,
    ReplicaModel,
    RequestTargets,
    undivided,
)
from inflight_simulator.fleet.fleet import Fleet
from inflight_simulator.fleet.requests import Requests
from inflight_simulator.fleet.run import run_fleet, simulate_fleet
from inflight_simulator.fleet.service import gateway_manifest_of
from inflight_simulator.fleet.view import Fixed
from tests.simulator.fleet.test_gateway_routing import conversations
from tests.simulator.fleet.test_naive import random_requests

EXACT = ReplicaModel(noise=0.0)
COST = EXACT.cost
RATE = 50_000.0


def apart(mode="Fixed", replicas=1, rate=RATE, **fields):
    return FleetConfig(
        routing="gateway", start_up=undivided(5.0), replica=EXACT, prefill=PrefillSet(mode, replicas, rate), **fields
    )


def one(prompt, output):
    return Requests(np.zeros(1), np.array([prompt]), np.array([output]))


class Keep:
    """Keeps the fleet."""

    interval_s = 1.0

    def update(self, fleet: Fleet, now: float) -> None:
        self.fleet = fleet


def test_a_prompt_is_computed_by_the_prefill_set_and_read_by_the_replica_that_answers():
    prompt, output = 1601, 3
    run = simulate_fleet(one(prompt, output), apart(), Fixed(1))
    alone = simulate_fleet(one(prompt, output), replace(apart(), prefill=None), Fixed(1))
    assert run.ttft == pytest.approx(alone.ttft)
    (read,), (gap,) = run.reads, run.gaps
    assert read == pytest.approx(1600 / RATE)
    # Its first step copies 100 blocks in, and computes the last token of the prompt and the first one of the answer.
    first = COST.base_s + COST.prefill_seconds(2, 1600) + 1600 * COST.copied_token_s
    assert gap == pytest.approx(read + first, rel=1e-3)
    second = COST.base_s + COST.decode_seq_s + COST.decode_kv_token_s * (prompt + 2)
    assert run.tpot[0] * (output - 1) == pytest.approx(gap + second, rel=1e-3)
    assert run.replica_hours == 0.0  # nothing arrives later


def test_what_is_slower_to_read_than_to_compute_is_computed():
    run = simulate_fleet(one(1601, 3), apart(rate=1000.0), Fixed(1))
    assert run.reads.tolist() == [0.0]
    assert run.gaps[0] > COST.prefill_seconds(1600, 0)


def test_reads_of_a_replica_follow_one_another():
    requests = Requests(np.zeros(2), np.array([801, 801]), np.array([5, 5]))
    run = simulate_fleet(requests, apart(rate=100_000.0), Fixed(1))
    assert sorted(run.reads) == pytest.approx([0.008, 0.016])


def test_the_prefill_set_may_have_limits_of_its_own():
    config = apart(limits=Limits(256, 512))
    larger = replace(config, prefill=replace(config.prefill, limits=Limits(4, 2048)))
    steps = [simulate_fleet(one(1601, 3), each, Fixed(1)).ttft[0] for each in (config, larger)]
    assert steps[0] - steps[1] == pytest.approx(3 * COST.base_s, rel=1e-3)


def test_an_engine_that_gives_keys_and_values_away_copies_them_out_in_a_step():
    requests = Requests(np.array([0.0, 0.001]), np.array([1601, 100]), np.array([3, 3]))
    late = []
    for copied in (2e-6, 4e-6):
        replica = replace(EXACT, cost=replace(COST, copied_token_s=copied))
        late.append(simulate_fleet(requests, replace(apart(), replica=replica), Fixed(1)).ttft[1])
    assert late[1] - late[0] == pytest.approx(1600 * 2e-6, rel=1e-3)


def test_an_answer_of_one_token_is_not_handed_over():
    run = simulate_fleet(one(1601, 1), apart(), Fixed(1))
    assert len(run.reads) == 0
    assert run.kept.all()


@pytest.mark.parametrize("mode", ["Fixed", "Auto"])
@pytest.mark.parametrize("pods", [1, 3])
def test_all_requests_end_and_all_blocks_are_free_in_the_end(mode, pods):
    requests = random_requests(600, 60, 7, prompt=1500, output=80)
    small = replace(EXACT, kv_tokens=30_000)
    gateway = GatewayModel(pods=pods, owner_ends_s=None if pods == 1 else 4.0)
    keep = Keep()
    config = replace(apart(mode, 2), replica=small, gateway=gateway, initial_replicas=2)
    run = run_fleet(requests, config, [keep])
    assert not np.isnan(run.ttft).any()
    assert not np.isnan(run.tpot).any()
    assert len(run.reads) == len(run.gaps)
    assert mode == "Auto" or len(run.reads) > 50
    for pod in keep.fleet.pods:
        assert pod.replica.outstanding == 0
        assert pod.replica.scheduler.kv_usage == 0.0
        assert not pod.replica.scheduler.has_work


def test_each_set_may_have_many_replicas():
    run = simulate_fleet(random_requests(40, 40, 5, prompt=1000), apart(replicas=20), Fixed(20))
    assert not np.isnan(run.tpot).any()


def test_a_request_that_nobody_can_take_over_goes_on_where_it_began():
    requests = Requests(np.linspace(0, 0.5, 40), np.full(40, 900), np.full(40, 400))
    config = apart(replicas=1)
    few = simulate_fleet(requests, replace(config, replica=replace(EXACT, kv_tokens=8000)), Fixed(1))
    assert len(few.reads) < 40
    assert not np.isnan(few.tpot).any()


def test_with_prefix_caches_only_what_the_replica_lacks_is_read():
    requests = conversations(1, 4, every=2.0)
    run = simulate_fleet(requests, apart(), Fixed(1))
    new = np.diff(requests.prompt_tokens, prepend=0)
    assert run.reads * RATE == pytest.approx(new, abs=32)


def test_a_replica_drains_with_what_it_reads():
    class Shrink:
        interval_s = 0.1

        def update(self, fleet, now):
            fleet.order(1 if now > 0.3 else 3, now)

    config = apart(rate=20_000.0, initial_replicas=3)
    run = run_fleet(random_requests(100, 40, 3, prompt=1000), config, [Shrink()])
    assert not np.isnan(run.tpot).any()
    assert run.replicas[-1].existing == 1


def test_in_auto_two_sets_with_nothing_to_gain_from_each_other_do_as_well_as_one():
    requests = random_requests(600, 40, 2, prompt=1500, output=200)
    one_set = simulate_fleet(requests, replace(apart(), prefill=None), Fixed(4))
    two_sets = simulate_fleet(requests, apart("Auto", 2), Fixed(2))
    fixed = simulate_fleet(requests, apart("Fixed", 2), Fixed(2))
    assert len(two_sets.reads) < 0.02 * 600 < len(fixed.reads)
    assert two_sets.kept.mean() >= max(one_set.kept.mean(), fixed.kept.mean()) - 0.03


LONG_PROMPTS, LONG_ANSWERS, SHORT_PROMPTS = (4000, 100), (4000, 400), (500, 100)


def of_like_sizes(count, a_second, means):
    """Requests of lognormal sizes that come at random."""
    random = np.random.default_rng(0)
    arrival_s = np.cumsum(random.exponential(1 / a_second, count))
    return Requests(arrival_s, *(random.lognormal(np.log(mean), 0.3, count).astype(np.int64) for mean in means))


@pytest.mark.parametrize(
    ("tpot", "means", "a_second", "replicas", "limits", "hands_over"),
    [
        (0.0085, LONG_PROMPTS, 8, (3, 2), Limits(8, 512), True),
        (0.008, LONG_PROMPTS, 8, (7, 2), Limits(8, 512), True),
        (0.0085, LONG_ANSWERS, 8, (4, 2), Limits(12, 512), True),
        (0.0085, LONG_PROMPTS, 8, (3, 2), Limits(2, 280), False),  # no slots for the answers of both sets
        (0.009, LONG_PROMPTS, 8, (4, 2), Limits(3, 82), False),  # each step is short enough for the target
        (0.02, LONG_PROMPTS, 8, (2, 1), Limits(8, 512), False),
        (0.05, SHORT_PROMPTS, 40, (2, 1), Limits(64, 512), False),
    ],
)
def test_auto_keeps_as_many_requests_in_target_as_the_better_of_one_set_and_fixed(
    tpot, means, a_second, replicas, limits, hands_over
):
    requests = of_like_sizes(400, a_second, means)
    targets = RequestTargets(tpot=tpot, prefill_factor=2.0)
    answer, prefill = replicas
    rate = 1 / (PEER_SLOWNESS * COST.copied_token_s)
    config = apart("Auto", prefill, rate, policy="deadline", limits=limits, targets=targets, max_replicas=20)
    auto = simulate_fleet(requests, config, Fixed(answer))
    fixed = simulate_fleet(requests, replace(config, prefill=replace(config.prefill, mode="Fixed")), Fixed(answer))
    one_set = simulate_fleet(requests, replace(config, prefill=None), Fixed(answer + prefill))
    assert auto.attainment >= max(one_set.attainment, fixed.attainment) - 0.03
    assert len(auto.reads) > 0.8 * 400 if hands_over else len(auto.reads) < 0.05 * 400


def test_the_same_seed_gives_equal_results():
    requests = random_requests(200, 40, 1, prompt=1000)
    first, again = (simulate_fleet(requests, replace(apart("Auto"), replica=ReplicaModel()), Fixed(2)) for _ in "ab")
    np.testing.assert_array_equal(first.tpot, again.tpot)


def test_the_gateway_has_targets_of_less_than_a_millisecond_more():
    service, _ = read_service(gateway_manifest_of(apart("Auto", targets=RequestTargets(ttft=0.2507, tpot=0.0085))))
    assert (service.ttft_s, service.tpot_s, service.apart) == (0.2507, 0.0085, "Auto")


@pytest.mark.parametrize("given", ["autopilot", "autopilot:4/8192", "fixed:4"])
def test_limits_of_the_prefill_set_are_fixed(trace, given, capsys):
    with pytest.raises(SystemExit):
        main(["fleet", trace, "--scaler", "fixed:1", "--prefill-limits", given])
    error = f"{given!r} is not fixed:SEQS/TOKENS, as in fixed:4/8192: no operator tunes the prefill set here"
    assert error in capsys.readouterr().err


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,2000,5\n10,2000,5\n")
    return str(path)


def test_the_command_says_what_was_handed_over_and_counts_all_replicas(trace, capsys):
    flags = ["fleet", trace, "--scaler", "fixed:1", "--routing", "gateway"]
    assert main([*flags, "--disaggregate", "Fixed", "--prefill-replicas", "2", "--transfer-rate", "1e5"]) == 0
    text = capsys.readouterr().out
    assert "handed over             100.0% of requests, keys and values read in 20 ms," in text
    assert "replica-hours           0.01" in text
    assert main(flags) == 0
    assert "handed over" not in capsys.readouterr().out


def test_a_scaler_changes_only_the_replicas_that_answer(trace, capsys):
    flags = ["--routing", "gateway", "--disaggregate", "Fixed", "--prefill-replicas", "2", "--start-up", "1"]
    assert main(["fleet", trace, "--scaler", "autopilot", "--initial", "1", *flags]) == 0
    text = capsys.readouterr().out
    assert "ordered 1 to 1, at most 1 at once" in text
    assert "replica-hours           0.01" in text


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--disaggregate", "Auto"], "--disaggregate and --prefill-replicas need each other"),
        (["--prefill-replicas", "1"], "--disaggregate and --prefill-replicas need each other"),
        (["--disaggregate", "Auto", "--prefill-replicas", "1"], "needs --routing gateway"),
        (["--prefill-limits", "fixed:4/8192"], "--prefill-limits needs --disaggregate"),
    ],
)
def test_flags_that_say_too_little_are_refused(trace, flags, error, capsys):
    assert main(["fleet", trace, "--scaler", "fixed:1", *flags]) == 2
    assert error in capsys.readouterr().err
