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


def addresses(pick):
    return {one.address for one in pick.endpoints}


def test_fixed_has_the_prefill_set_compute_each_prompt_and_the_others_answer():
    pick = apart("Fixed").start(request(), (), NOW)
    assert (pick.prefill, pick.reason, addresses(pick)) == (True, "prefill", {PREFILLS})
    for moved in (request(attempt=2, handed_over=True), request(attempt=2)):
        pick = apart("Fixed").start(moved, (), NOW)
        assert (pick.prefill, addresses(pick)) == (False, {ANSWERS, ANSWERS_TOO})


def test_auto_uses_all_engines_as_one_set_but_for_what_is_handed_over():
    pick = apart("Auto").start(request(), (), NOW)
    assert (pick.prefill, pick.endpoints[0].address, len(pick.endpoints)) == (False, PREFILLS, 3)
    assert apart("Auto").start(request(attempt=2), (), NOW).endpoints[0].address == PREFILLS
    moved = apart("Auto").start(request(attempt=2, handed_over=True), (), NOW)
    assert addresses(moved) == {ANSWERS, ANSWERS_TOO}


def test_auto_hands_over_once_the_prefill_set_is_busy_with_prompts():
    cost = replace(COST, copied_token_s=1e-6)
    samples = {ANSWERS: sample(running=2, cost=cost), PREFILLS: sample(cost=cost)}
    starter = apart("Auto", samples=samples)
    picks = []
    for number in range(400):
        name, now = f"r{number}", NOW + number / 20
        samples[PREFILLS] = sample(cost=cost, at=now)
        samples[ANSWERS] = sample(running=2, waiting_prompt_tokens=3000, waiting=2, cost=cost, at=now)
        picks.append(starter.start(request(name, prompt_tokens=1200), (), now))
        starter.ended(name, now)
    at_prefills = [pick.prefill for pick in picks if pick.endpoints[0].address == PREFILLS]
    assert len(at_prefills) > 300
    assert (at_prefills[0], at_prefills[-1]) == (False, True)


COPIED = replace(COST, copied_token_s=1e-6)


def with_targets(tpot_s, **prefills):
    """Two idle engines that answer and one that computes prompts, after eight long prompts a second."""
    samples = dict.fromkeys((ANSWERS, ANSWERS_TOO, PREFILLS), sample(cost=COPIED))
    starter = apart("Auto", samples=samples, ttft_s=0.5, tpot_s=tpot_s)
    for number in range(32):
        name, now = f"before{number}", NOW - 4 + number / 8
        samples.update(dict.fromkeys(samples, sample(cost=COPIED, at=now)))
        starter.start(request(name, prompt_tokens=3000), (), now)
        starter.ended(name, now)
    samples.update(dict.fromkeys(samples, sample(cost=COPIED, at=NOW)))
    samples[PREFILLS] = sample(cost=COPIED, at=NOW, **prefills)
    return starter


BUSY_WITH_ANSWERS = {"running": 30, "kv_utilization": 0.3}
FULL = {"waiting": 20, "waiting_prompt_tokens": 40_000}


def test_auto_has_the_prefill_set_compute_prompts_where_answers_would_miss_their_target_beside_them():
    asked = request(prompt_tokens=3000)
    pick = with_targets(7e-3, **BUSY_WITH_ANSWERS).start(asked, (), NOW)
    assert (pick.prefill, addresses(pick)) == (True, {PREFILLS})
    pick = with_targets(0.05, **BUSY_WITH_ANSWERS).start(asked, (), NOW)
    assert (pick.prefill, pick.endpoints[0].address in {ANSWERS, ANSWERS_TOO}) == (False, True)


def test_such_a_prompt_waits_for_the_prefill_set_while_its_first_token_would_be_in_time():
    starter = with_targets(7e-3, **FULL)
    assert starter.start(request(prompt_tokens=3000), (), NOW) is None
    pick = starter.start(request(prompt_tokens=3000), (), NOW + 0.5)
    assert (pick.prefill, pick.endpoints[0].address in {ANSWERS, ANSWERS_TOO}) == (False, True)


@pytest.mark.parametrize("prefills", [BUSY_WITH_ANSWERS, FULL], ids=["busy", "full"])
def test_a_continued_answer_neither_waits_for_the_prefill_set_nor_is_handed_over_again(prefills):
    pick = with_targets(7e-3, **prefills).start(request(prompt_tokens=3000, attempt=2), (), NOW)
    assert (pick.prefill, pick.endpoints[0].address in {ANSWERS, ANSWERS_TOO}) == (False, True)


@pytest.mark.parametrize(
    ("mode", "config", "allowed", "expected"),
    [
        ("Off", {}, (), {ANSWERS, ANSWERS_TOO}),
        ("Auto", {"continuation": False}, (), {ANSWERS, ANSWERS_TOO, PREFILLS}),
        ("Fixed", {"continuation": False}, (), {ANSWERS, ANSWERS_TOO, PREFILLS}),
        ("Fixed", {}, (ANSWERS,), {ANSWERS}),
    ],
    ids=["off", "auto without continuation", "fixed without continuation", "another gateway allows it"],
)
def test_without_a_way_back_no_answer_leaves(mode, config, allowed, expected):
    pick = apart(mode, **config).start(request(prompt_tokens=20_000), allowed, NOW)
    assert (pick.prefill, addresses(pick)) == (False, expected)


@pytest.mark.parametrize("mode", ["Auto", "Fixed"])
@pytest.mark.parametrize("asked", [request(), request(attempt=2), request(attempt=2, handed_over=True)])
def test_without_an_engine_that_answers_the_prefill_set_does(mode, asked):
    starter = apart(mode, samples={PREFILLS: sample()})
    pick = starter.start(asked, (), NOW)
    assert (pick.prefill, addresses(pick)) == (False, {PREFILLS})
    assert starter.least_requests(starter._catalog.services[CONFIG.key], None) is not None


def test_with_mode_off_engines_of_a_prefill_set_that_is_still_there_take_nothing():
    starter = apart("Off", samples={PREFILLS: sample()})
    assert starter.start(request(), (), NOW) is None
    assert starter.least_requests(starter._catalog.services[CONFIG.key], None) is None


def test_what_is_read_has_the_time_to_be_computed_before_it_counts_as_late():
    cost = replace(COST, copied_token_s=1e-7)
    starter = apart("Auto", samples={ANSWERS: sample(cost=cost)})
    read = starter.start(request(prompt_tokens=500_000, attempt=2, handed_over=True), (), NOW)
    assert read.first_token_within_s > 4 * cost.prefill_seconds(500_000)


def test_without_an_engine_of_the_prefill_set_fixed_computes_prompts_where_they_are_answered():
    pick = apart("Fixed", samples={ANSWERS: sample()}).start(request(), (), NOW)
    assert (pick.prefill, addresses(pick)) == (False, {ANSWERS})


def test_with_a_full_prefill_set_fixed_waits():
    samples = {ANSWERS: sample(), PREFILLS: sample(waiting_prompt_tokens=10**6, waiting=9)}
    assert apart("Fixed", samples=samples).start(request(), (), NOW) is None
    assert addresses(apart("Auto", samples=samples).start(request(), (), NOW)) == {ANSWERS, PREFILLS}


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
    ledger = starter._ledger

    def shares(now):
        return [ledger.prefill_share(address, now) for address in (PREFILLS, ANSWERS)]

    assert shares(NOW) == [0.0, 0.0]
    for number in range(600):
        starter.start(request(f"r{number}", prompt_tokens=1000), (), NOW + number / 10)
        starter.ended(f"r{number}", NOW + number / 10)
    share, other = shares(NOW + 60)
    assert (share, other) == (pytest.approx(10 * 1000 / 31_000, rel=0.2), 0.0)
    assert shares(NOW + 90)[0] < share / 10
