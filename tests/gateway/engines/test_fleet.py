"""Candidates of large services: those that a ranking of all replicas would put first."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.engines import ledger as ledger_module
from inflight_gateway.engines.fleet import MOST_RANKED
from inflight_gateway.engines.ledger import REFUSAL_S, Ledger
from inflight_gateway.pick.late_binding import most_outstanding
from inflight_gateway.pick.picker import Picker
from inflight_gateway.tenants.estimate import Estimates
from inflight_gateway.types import Endpoint, EngineSample, Pick, RequestView, ServiceConfig
from inflight_settings.limits import Limits
from tests.gateway.pick.loads import COST

SERVICE = ServiceKey("default", "chat")
CONFIG = ServiceConfig(SERVICE, "u", "m")
LIMITS = Limits(32, 2048)


class World:
    """Two ledgers of the same requests. Attributes: every: the one that ranks all replicas."""

    def __init__(self, replicas, **sample):
        self.endpoints = tuple(Endpoint(f"10.0.0.{number}:80", f"pod-{number}") for number in range(replicas))
        self.samples = {each.address: scraped(0.0, **sample) for each in self.endpoints}
        self.ledgers = [Ledger(lambda _: self.endpoints, self.samples.get, Estimates()) for _ in range(2)]
        self.ledger, self.every = self.ledgers
        self.picker, self.count = Picker(), 0

    def pick(self, ledger, request, now, **shares):
        found = ledger.candidates(
            CONFIG, request, now, above=shares.get("above_share", False), claimed=shares.get("claimed", 0)
        )
        return self.picker.pick(request, CONFIG, found.loads, now, replicas=found.replicas, **shares), found

    def both(self, request, now, **shares):
        """The pick from the candidates, and that from all replicas."""
        mine, found = self.pick(self.ledger, request, now, **shares)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ledger_module, "MOST_RANKED", 10**9)
            best, every = self.pick(self.every, request, now, **shares)
        assert len(found.loads) <= MOST_RANKED < len(every.loads)
        assert found.replicas == every.replicas == len(self.endpoints)
        return mine, best

    def request(self, tokens=1000, **fields):
        self.count += 1
        return RequestView(str(self.count), SERVICE, 0.0, prompt_tokens=tokens, **fields)

    def begin(self, request, endpoint, now):
        for each in self.ledgers:
            each.begin(request, Pick((endpoint,), "least-work"), now)

    def end(self, name, now):
        for each in self.ledgers:
            each.end(name, now)

    def scrape(self, endpoint, now, **fields):
        self.samples[endpoint.address] = scraped(now, **fields)
        for each in self.ledgers:
            each.sampled(endpoint.address, now)


def scraped(at, **fields):
    return EngineSample(**{"at": at, "kv_cache_tokens": 400_000, "limits": LIMITS, "cost": COST, **fields})


def total(pick):
    return sum(pick.scores.values())


REPLICA = st.integers(0, 39)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("pick"), st.sampled_from((1, 100, 2000, 30_000))),
        st.tuples(st.just("send"), REPLICA, st.sampled_from((1, 100, 5000, 50_000))),
        st.tuples(st.just("end"), st.integers(0, 200)),
        st.tuples(st.just("scrape"), REPLICA, st.integers(0, 40), st.integers(0, 9000), st.floats(0, 0.85)),
        st.tuples(st.just("wait"), st.sampled_from((0.001, 0.05, 0.7))),
    ),
    min_size=20,
    max_size=120,
)


@given(OPERATIONS)
def test_the_pick_of_a_large_service_is_as_good_as_that_of_a_ranking_of_all_its_replicas(operations):
    world, now = World(40), 0.0
    for operation in operations:
        match operation:
            case ("wait", seconds):
                now += seconds
            case ("send", number, tokens):
                world.begin(world.request(tokens), world.endpoints[number], now)
            case ("end", name):
                world.end(str(name), now)
            case ("scrape", number, running, tokens, kv):
                waiting = {"waiting": 1, "waiting_prompt_tokens": tokens} if tokens > 100 else {}
                world.scrape(world.endpoints[number], now, running=running, kv_utilization=kv, **waiting)
            case ("pick", tokens):
                request = world.request(tokens)
                mine, best = world.both(request, now)
                assert (mine is None) == (best is None)
                if mine is not None:
                    assert total(mine) <= total(best) + 0.005
                    world.begin(request, mine.endpoints[0], now)


def test_replicas_that_hold_the_prompt_are_ranked_however_loaded_they_are():
    world = World(100)
    prefix = tuple(range(1, 51))
    holder = world.endpoints[77]
    world.begin(world.request(3200, prefix=prefix), holder, 0.0)
    for _ in range(5):
        world.begin(world.request(64), holder, 0.5)
    mine, best = world.both(world.request(3200, prefix=prefix), 0.5)
    assert mine.endpoints[0] == best.endpoints[0] == holder
    assert mine.reason == best.reason == "prefix"


def test_an_idle_fleet_is_used_evenly():
    world, used = World(60), Counter()
    for number in range(600):
        now, request = number / 100, world.request(10)
        mine, _ = world.pick(world.ledger, request, now)
        used[mine.endpoints[0]] += 1
        world.ledger.begin(request, mine, now)
        world.ledger.end(request.request_id, now)
    assert len(used) == 60
    assert max(used.values()) <= 20


def test_full_replicas_are_no_candidates_while_one_has_a_slot_and_none_is_picked_without_one():
    world = World(50)
    for endpoint in world.endpoints:
        for _ in range(most_outstanding(LIMITS.max_num_seqs)):
            world.begin(world.request(0), endpoint, 0.0)
    assert world.both(world.request(), 1.0) == (None, None)
    world.end("777", 1.0)
    mine, best = world.both(world.request(), 1.0)
    assert mine.endpoints[0] == best.endpoints[0]


def test_a_tenant_above_its_share_gets_the_replica_that_has_slots_left_for_others():
    world = World(50)
    most = most_outstanding(LIMITS.max_num_seqs, above_share=True, claimed=3)
    for endpoint in world.endpoints:
        for _ in range(most):
            world.begin(world.request(0), endpoint, 0.0)
    shares = {"above_share": True, "claimed": 150}
    assert world.both(world.request(), 5.0, **shares) == (None, None)
    free = world.endpoints[33]
    world.end(str(33 * most + 1), 5.0)
    for each in world.endpoints:
        world.scrape(each, 5.0, running=1, kv_utilization=0.4 if each == free else 0.0)
    mine, best = world.both(world.request(), 5.0, **shares)
    assert mine.endpoints[0] == best.endpoints[0] == free


def test_a_backlog_that_has_become_short_lets_requests_start_without_a_new_sample():
    world = World(20)
    for endpoint in world.endpoints:
        world.scrape(endpoint, 0.0, waiting=9, waiting_prompt_tokens=30_000)
    began = [now / 100 for now in range(200) if world.both(world.request(), now / 100)[0] is not None]
    assert 0.5 < began[0] < 1.5


def test_replicas_that_failed_or_refused_are_left_out_for_their_time():
    world = World(40)
    failed = frozenset(each.address for each in world.endpoints[:20])
    for each in world.endpoints[20:39]:
        world.ledger.refused(each.address, 1.0)
    mine, _ = world.pick(world.ledger, world.request(avoid=failed), 1.1)
    assert mine.endpoints[0] == world.endpoints[39]
    mine, _ = world.pick(world.ledger, world.request(avoid=failed | {world.endpoints[39].address}), 1.1)
    assert mine is not None
    _, found = world.pick(world.ledger, world.request(), 1.1 + REFUSAL_S)
    assert len(found.loads) == MOST_RANKED // 2


def test_endpoints_and_settings_that_change_are_followed():
    world = World(40)
    world.pick(world.ledger, world.request(), 0.0)
    gone, world.endpoints = world.endpoints[:20], world.endpoints[20:]
    for each in gone:
        world.ledger.forget(SERVICE, each.address)
    _, found = world.pick(world.ledger, world.request(), 1.0)
    assert {load.endpoint for load in found.loads} <= set(world.endpoints)
    assert world.ledger.candidates(replace(CONFIG, ttft_s=9.0), world.request(), 1.0).replicas == 20


def test_of_the_endpoints_that_another_gateway_allows_some_are_ranked():
    world = World(100)
    allowed = [each.address for each in world.endpoints[50:90]]
    found = world.ledger.candidates(CONFIG, world.request(), 0.0, allowed=allowed)
    assert found.replicas == 40
    assert len(found.loads) == MOST_RANKED
    assert {load.endpoint.address for load in found.loads} <= set(allowed)
