"""Bounds of the gateway's hold queue, tenants with weights and limits, floods, and several gateway pods."""

from dataclasses import replace

import numpy as np
import pytest

from inflight_settings.limits import Limits
from inflight_simulator.cli import main
from inflight_simulator.errors import InputError
from inflight_simulator.fleet.commands.flags import flood as parsed_flood
from inflight_simulator.fleet.config import FleetConfig, GatewayModel, ReplicaModel, RequestTargets
from inflight_simulator.fleet.requests import Flood, Requests, read_requests
from inflight_simulator.fleet.run import run_fleet, simulate_fleet
from inflight_simulator.fleet.service import read_gateway_spec
from inflight_simulator.fleet.view import Fixed

CONFIG = FleetConfig(routing="gateway", limits=Limits(8, 2048), replica=ReplicaModel(noise=0.0))


def steady(rate, seconds, *, prompt=200, output=100, tenant=""):
    count = int(rate * seconds)
    tenants = (tenant,) * count if tenant else ()
    sizes = np.full(count, prompt), np.full(count, output)
    return Requests(np.arange(count) / rate, *sizes, tenants=tenants)


def both(one, other):
    return Requests.sorted(
        *(
            np.concatenate(pair)
            for pair in (
                (one.arrival_s, other.arrival_s),
                (one.prompt_tokens, other.prompt_tokens),
                (one.output_tokens, other.output_tokens),
            )
        ),
        tenants=one.tenants + other.tenants,
    )


def with_gateway(config=CONFIG, *, pods=1, hop_s=0.0005, owner_ends_s=None, **spec):
    return replace(config, gateway=GatewayModel(spec, pods, hop_s, owner_ends_s))


class Held:
    """Notes how many requests the gateway holds."""

    interval_s = 0.5

    def __init__(self):
        self.most = 0

    def update(self, fleet, now):
        self.most = max(self.most, fleet.gateway.num_held)


def test_requests_beyond_the_bounds_of_the_hold_queue_are_refused_and_miss_their_targets():
    held = Held()
    run = run_fleet(steady(100, 10), with_gateway(hold={"maxRequests": 50}), [held])
    assert 0 < held.most <= 50
    assert run.refusals == {"queue_full": run.refused}
    assert run.refused == np.isnan(run.ttft).sum() > 100
    assert run.attainment <= 1 - run.refused / 1000


def test_no_request_waits_longer_than_the_maximum_wait():
    run = simulate_fleet(steady(100, 10), with_gateway(hold={"maxWait": "3s"}), Fixed(1))
    assert run.refusals == {"no_replica": run.refused}
    assert run.refused > 100
    # A request that is sent to the replica may wait there for a moment.
    assert np.nanmax(run.ttft) < 4


def test_waiting_tenants_get_tokens_by_their_weights():
    requests = both(steady(60, 10, tenant="three"), steady(60, 10, tenant="one"))
    run = simulate_fleet(requests, with_gateway(tenants=[{"name": "three", "weight": 3}]), Fixed(1))
    first = run.arrival_s + run.ttft
    in_time = (first > 2) & (first < 10)
    served = {name: int((in_time & (np.array(run.tenants) == name)).sum()) for name in ("three", "one")}
    assert served["three"] / served["one"] == pytest.approx(3, rel=0.15)


def test_a_tenant_above_its_limit_is_refused_and_others_are_not():
    requests = both(steady(2, 60, tenant="limited"), steady(2, 60, tenant="free"))
    spec = {"tenants": [{"name": "limited", "requestsPerMinute": 30}]}
    run = simulate_fleet(requests, with_gateway(**spec), Fixed(2))
    refused = np.isnan(run.ttft)
    limited = np.array(run.tenants) == "limited"
    assert int((limited & ~refused).sum()) == 30
    assert not (refused & ~limited).any()
    assert run.refusals == {"rate_limit_exceeded": 90}


def test_a_tenant_does_not_wait_behind_the_flood_of_another():
    quiet = steady(1, 30, tenant="quiet")
    alone = simulate_fleet(quiet, with_gateway(), Fixed(1))
    flooded = quiet.with_flood(Flood("loud", 60.0), seed=1)
    beside = simulate_fleet(flooded, with_gateway(hold={"maxRequests": 100_000, "maxWait": "1h"}), Fixed(1))
    ttft = beside.ttft[np.array(beside.tenants) == "quiet"]
    loud = beside.ttft[np.array(beside.tenants) == "loud"]
    assert np.median(loud) > 5
    # After its first request, for which no slot was kept free.
    assert np.percentile(ttft[2:], 95) < np.percentile(alone.ttft, 95) + 0.1


def test_a_flood_has_its_rate_in_its_time_and_sizes_of_the_trace():
    trace = steady(10, 100, prompt=300, output=50)
    flooded = trace.with_flood(Flood("loud", 20.0, 30.0, 60.0), seed=4)
    loud = np.array(flooded.tenants) == "loud"
    assert loud.sum() == pytest.approx(600, rel=0.15)
    assert 30 <= flooded.arrival_s[loud].min() < flooded.arrival_s[loud].max() <= 60
    assert set(flooded.prompt_tokens) == {300}
    assert (np.diff(flooded.arrival_s) >= 0).all()
    assert flooded.tenants.count("") == 1000


def test_pods_without_a_delay_between_them_give_the_result_of_one():
    requests = steady(40, 10)
    one = simulate_fleet(requests, with_gateway(), Fixed(2))
    three = simulate_fleet(requests, with_gateway(pods=3, hop_s=0.0), Fixed(2))
    np.testing.assert_array_equal(one.ttft, three.ttft)


def test_a_request_at_another_pod_than_the_owner_is_later_by_the_way_to_the_owner_and_back():
    requests = steady(2, 10, output=2)
    one = simulate_fleet(requests, with_gateway(), Fixed(1))
    two = simulate_fleet(requests, with_gateway(pods=2, hop_s=0.01), Fixed(1))
    delays = np.sort(np.round(two.ttft - one.ttft, 6))
    np.testing.assert_allclose(delays, [0.0] * 10 + [0.02] * 10, atol=1e-6)


def test_when_the_owner_ends_no_request_is_lost_and_those_that_wait_keep_their_order():
    requests = steady(100, 6)
    # Without late requests, which have an order of their own.
    patient = replace(CONFIG, targets=RequestTargets(600.0, 600.0))
    run = simulate_fleet(
        requests, with_gateway(patient, pods=3, hop_s=0.0, owner_ends_s=3.0, hold={"maxWait": "10m"}), Fixed(1)
    )
    assert not np.isnan(run.ttft).any()
    assert (np.diff(run.arrival_s + run.ttft) >= -1e-9).all()
    kept = simulate_fleet(requests, with_gateway(patient, pods=3, hold={"maxWait": "10m"}), Fixed(1))
    # The new owner starts with the requests that engines have, so it neither floods nor idles them.
    assert np.max(run.arrival_s + run.ttft) == pytest.approx(np.max(kept.arrival_s + kept.ttft), rel=0.02)


class EndsWith:
    """Compares the new owner's account with the engines'."""

    interval_s = 0.25

    def __init__(self):
        self.seen = {}

    def update(self, fleet, now):
        at_engines = sum(pod.replica.outstanding for pod in fleet.live)
        self.seen[now] = sum(load.in_flight for load in fleet.gateway.loads().values()), at_engines


def test_the_next_owner_starts_with_what_runs_and_not_with_zero():
    watch = EndsWith()
    config = with_gateway(pods=2, owner_ends_s=3.2, hold={"maxWait": "10m"})
    run_fleet(steady(100, 6), config, [watch])
    assert watch.seen[3.25][0] == pytest.approx(watch.seen[3.25][1], abs=1)
    assert watch.seen[3.25][0] >= 8


def test_a_tenants_limit_gives_at_most_one_more_minute_when_the_owner_ends():
    spec = {"tenants": [{"name": "limited", "requestsPerMinute": 30}]}
    requests = steady(2, 50, tenant="limited")
    run = simulate_fleet(requests, with_gateway(pods=2, owner_ends_s=25.0, **spec), Fixed(2))
    assert 30 < (~np.isnan(run.ttft)).sum() <= 60


def test_the_trace_the_service_and_a_flood_come_from_the_command_line(tmp_path, capsys):
    trace = tmp_path / "trace.csv"
    rows = (f"{number / 4},200,20,{'one' if number % 2 else 'two'}\n" for number in range(120))
    trace.write_text("arrival_s,prompt_tokens,output_tokens,tenant\n" + "".join(rows))
    service = tmp_path / "chat.yaml"
    service.write_text(
        "apiVersion: inflight.dev/v1alpha1\nkind: InferenceService\nmetadata: {name: chat}\n"
        'spec:\n  model: {source: "builtin://smollm2"}\n'
        "  gateway: {enabled: true, tenants: [{name: one, requestsPerMinute: 7}]}\n"
    )
    flags = ["--scaler", "fixed:2", "--routing", "gateway", "--gateway-pods", "2", "--service", str(service)]
    assert main(["fleet", str(trace), *flags, "--flood", "loud:5@10-20"]) == 0
    printed = capsys.readouterr().out
    assert "53 refused (53 rate_limit_exceeded)" in printed
    assert "tenant one              60 requests, 53 refused, 11.67% in target" in printed
    assert "tenant loud" in printed


def test_faults_of_the_flags_are_said(tmp_path):
    assert parsed_flood("a:b:5") == Flood("a:b", 5.0)
    for text in ("acme", ":5", "acme:5@3", "acme:x"):
        with pytest.raises(Exception, match=r"TENANT:RATE|not a number|number"):
            parsed_flood(text)
    file = tmp_path / "service.yaml"
    file.write_text("spec: {gateway: {hold: {maxRequests: many}}}")
    with pytest.raises(InputError, match="not an InferenceService"):
        read_gateway_spec(file)
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,1,1\n")
    assert main(["fleet", str(trace), "--scaler", "fixed:1", "--owner-ends", "3"]) != 0
    assert read_requests(trace).tenants == ()
