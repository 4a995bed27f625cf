"""Picks of the starter, beside those of the picker itself."""

from dataclasses import replace

import pytest

from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.engines.ledger import Ledger
from inflight_gateway.pick.picker import Picker
from inflight_gateway.requests.starter import Starter
from inflight_gateway.tenants.estimate import Estimates
from inflight_gateway.types import Endpoint
from tests.gateway.pick.loads import CONFIG, COST, NOW, request, sample

BUSY, IDLE = "10.0.0.1:80", "10.0.0.2:80"


def starter():
    """Two replicas without requests of this gateway; one of them computes long prompts of others."""
    samples = {BUSY: sample(waiting_prompt_tokens=200_000, waiting=4), IDLE: sample(running=9)}
    catalog = Catalog()
    catalog.update(services={CONFIG.key: CONFIG}, endpoints={CONFIG.key: [Endpoint(one, "p") for one in samples]})
    return Starter(catalog, Picker(), Ledger(catalog.endpoints_of, samples.get, Estimates()))


def test_a_request_that_keeps_replicas_free_waits_until_more_are_ready():
    assert starter().start(request(), (), NOW, kept_free=1.0) is None


def test_a_request_with_allowed_replicas_goes_to_the_best_one_and_keeps_none_free():
    pick = starter().start(request(), {BUSY, IDLE}, NOW, kept_free=1.0)
    assert (pick.endpoints[0].address, pick.reason) == (IDLE, "least-work")


ANSWERS, ANSWERS_TOO, PREFILLS = "10.0.0.3:80", "10.0.0.4:80", "10.0.0.5:80"


def apart(mode, *, samples=None, **config):
    """Two engines that answer, one of them busy, and one that computes prompts."""
    samples = samples or {ANSWERS: sample(running=40), ANSWERS_TOO: sample(running=60), PREFILLS: sample()}
    catalog = Catalog()
    service = replace(CONFIG, apart=mode, **config)
    every = [Endpoint(one, "p", prefill=one == PREFILLS) for one in samples]
    catalog.update(services={CONFIG.key: service}, endpoints={CONFIG.key: every})
    return Starter(catalog, Picker(), Ledger(catalog.endpoints_of, samples.get, Estimates()))


def test_a_new_request_may_go_to_the_prefill_set_and_a_continued_one_never_does():
    at_first = apart("Fixed").start(request(prompt_tokens=20_000), (), NOW)
    assert (at_first.prefill, [one.address for one in at_first.endpoints]) == (True, [PREFILLS])
    moved = request(prompt_tokens=20_000, attempt=2, avoid=frozenset({PREFILLS}), handed_over=True)
    pick = apart("Auto").start(moved, (), NOW)
    assert (pick.prefill, {one.address for one in pick.endpoints}) == (False, {ANSWERS, ANSWERS_TOO})


@pytest.mark.parametrize(
    ("mode", "config", "allowed"),
    [("Off", {}, ()), ("Auto", {"continuation": False}, ()), ("Fixed", {}, (ANSWERS,))],
    ids=["off", "no continuation", "another gateway allows it"],
)
def test_without_a_way_back_prompts_are_computed_where_they_are_answered(mode, config, allowed):
    pick = apart(mode, **config).start(request(prompt_tokens=20_000), allowed, NOW)
    assert not pick.prefill
    assert PREFILLS not in {one.address for one in pick.endpoints}


def test_without_an_engine_of_the_prefill_set_fixed_computes_prompts_where_they_are_answered():
    pick = apart("Fixed", samples={ANSWERS: sample()}).start(request(), (), NOW)
    assert (pick.prefill, pick.endpoints[0].address) == (False, ANSWERS)


def test_a_request_that_generates_nothing_does_not_go_to_the_prefill_set():
    starter = apart("Fixed")
    pick = starter.least_requests(starter._catalog.services[CONFIG.key], None)
    assert {one.address for one in pick.endpoints} == {ANSWERS, ANSWERS_TOO}


def test_a_prompt_that_was_handed_over_counts_as_read_at_the_speed_that_the_engine_measured():
    cost = replace(COST, copied_token_s=1e-6)

    def predicted(slowness, **fields):
        samples = {ANSWERS: sample(running=9, peer_slowness=slowness, cost=cost)}
        return apart("Auto", samples=samples).start(request(prompt_tokens=20_000, attempt=2, **fields), (), NOW)

    computed = predicted(5.0)
    fast, slow, hopeless = (predicted(slowness, handed_over=True) for slowness in (5.0, 20.0, 2000.0))
    assert (computed.cached_tokens, fast.cached_tokens) == (0, 19_999)
    assert fast.predicted_ttft_s < slow.predicted_ttft_s < hopeless.predicted_ttft_s
    assert hopeless.predicted_ttft_s == pytest.approx(computed.predicted_ttft_s, rel=0.1)


def test_of_large_sets_each_is_ordered_by_itself():
    names = {f"10.0.1.{number}:80": sample(running=number) for number in range(20)}
    prefills = {f"10.0.2.{number}:80": sample(running=number) for number in range(20)}
    catalog = Catalog()
    every = [*(Endpoint(one, one) for one in names), *(Endpoint(one, one, prefill=True) for one in prefills)]
    catalog.update(services={CONFIG.key: replace(CONFIG, apart="Fixed")}, endpoints={CONFIG.key: every})
    ledger = Ledger(catalog.endpoints_of, {**names, **prefills}.get, Estimates())
    starter = Starter(catalog, Picker(), ledger)
    assert starter.start(request("a"), (), NOW).endpoints[0].address == "10.0.2.0:80"
    assert starter.start(request("b", attempt=2), (), NOW).endpoints[0].address == "10.0.1.0:80"
    ledger.forget(CONFIG.key, "10.0.2.0:80")
    catalog.update(endpoints={CONFIG.key: [one for one in every if one.address != "10.0.2.0:80"]})
    assert starter.start(request("c"), (), NOW).endpoints[0].address == "10.0.2.1:80"


def test_the_prompts_sent_to_an_engine_of_the_prefill_set_count_as_its_share_of_time_for_prompts():
    starter = apart("Fixed")
    config, ledger = starter._catalog.services[CONFIG.key], starter._ledger

    def shares(now):
        return [
            ledger.candidates(config, request(), now, prefill=side).loads[0].prefill_share for side in (True, False)
        ]

    assert shares(NOW) == [0.0, 0.0]
    for number in range(600):
        starter.start(request(f"r{number}", prompt_tokens=1000), (), NOW + number / 10)
        starter.ended(f"r{number}", NOW + number / 10)
    share, other = shares(NOW + 60)
    assert (share, other) == (pytest.approx(10 * 1000 / 31_000, rel=0.2), 0.0)
    assert shares(NOW + 90)[0] < share / 10
