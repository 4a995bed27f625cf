"""The ledger of sent requests: exact counts, and tokens that the last sample cannot contain."""

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.engines.account import Account, Sent
from inflight_gateway.engines.ledger import Ledger
from inflight_gateway.pick.blocks import ReplicaBlocks
from inflight_gateway.pick.load import STALE_S, decode_work
from inflight_gateway.tenants.estimate import Estimates
from inflight_gateway.types import Endpoint, EngineSample, Pick, PromptBlocks, RequestView, ServiceConfig
from tests.gateway.pick.loads import COST

SERVICE = ServiceKey("default", "chat")
CONFIG = ServiceConfig(SERVICE, "u", "m")
A, B = Endpoint("10.0.0.1:8000", "a"), Endpoint("10.0.0.2:8000", "b")


class World:
    def __init__(self, *endpoints):
        self.endpoints = list(endpoints or (A, B))
        self.samples = {}
        self.estimates = Estimates()
        self.ledger = Ledger(lambda _: self.endpoints, self.samples.get, self.estimates)

    def scrape(self, endpoint, at, **fields):
        self.samples[endpoint.address] = EngineSample(at=at, kv_cache_tokens=64_000, **fields)

    def send(self, name, endpoint=A, at=0.0, prompt=1000, cached=0, prefix=()):
        request = made(name, prompt, prefix)
        self.ledger.begin(request, Pick((endpoint,), "only", cached_tokens=cached), at)

    def load(self, endpoint=A, at=0.0, prompt=1000, prefix=()):
        found = self.ledger.candidates(CONFIG, made("?", prompt, prefix), at)
        assert found.replicas == len(self.endpoints)
        return next(each for each in found.loads if each.endpoint == endpoint)


def made(name, prompt=1000, prefix=()):
    return RequestView(str(name), SERVICE, 0.0, prompt_tokens=prompt, prefix=prefix)


def test_requests_are_in_flight_from_begin_to_end():
    world = World()
    world.send("x")
    world.send("y")
    assert (world.load(A).in_flight, world.load(B).in_flight) == (2, 0)
    assert world.ledger.service(SERVICE, 3.0) == (2, 3.0)
    world.ledger.end("x", 5.0)
    world.ledger.end("x", 5.0)
    world.ledger.end("never known", 5.0)
    assert world.load(A, 5.0).in_flight == 1
    assert world.ledger.service(SERVICE, 6.0) == (1, 1.0)


def test_a_request_that_envoy_sent_elsewhere_counts_there_and_no_longer_where_it_was_refused():
    """The second endpoint has to compute tokens that the first one had in its prefix cache."""
    world = World()
    world.load()
    world.send("x", A, prompt=700, cached=100)
    world.ledger.move("x", B.address, 1.0)
    assert world.load(A, 1.0).sent_tokens == 0
    world.ledger.move("x", B.address, 1.0)
    world.ledger.move("never known", B.address, 1.0)
    world.ledger.move("x", "10.9.9.9:80", 1.0)
    assert (world.load(A, 1.0).in_flight, world.load(B, 1.0).in_flight) == (0, 1)
    assert world.load(B, 1.0).sent_tokens == 700
    assert world.ledger.service(SERVICE, 1.0)[0] == 1
    world.ledger.end("x", 2.0)
    assert world.load(B, 2.0).in_flight == 0


def test_the_prefix_of_a_request_that_envoy_sent_elsewhere_is_cached_there():
    world = World()
    world.load()
    prefix = (1, 2, 3, 4, 5)
    world.send("before", B, prompt=128, prefix=prefix[:2])
    world.send("x", A, prompt=500, prefix=prefix)
    world.ledger.move("x", B.address, 1.0)
    assert world.load(B, 1.0).sent_tokens == 128 + 500 - 128
    assert world.load(B, 1.0, prompt=500, prefix=prefix).cached_tokens == 320
    assert world.load(A, 1.0).in_flight == 0


def test_a_refused_request_leaves_what_others_sent_there():
    world = World()
    world.scrape(A, at=0.0, cost=COST)
    world.load(B)
    world.send("y", A, at=0.5, prompt=300)
    world.send("x", A, at=0.6, prompt=500)
    world.ledger.move("x", B.address, 0.6)
    load = world.load(A, at=0.6)
    assert load.sent_tokens == 300
    assert load.computed_tokens <= 300
    # A sample that began after it has no trace of it.
    world.send("z", A, at=0.7, prompt=500)
    world.scrape(A, at=0.8, cost=COST)
    world.load(A, at=0.8)
    world.ledger.move("z", B.address, 0.9)
    assert world.load(A, at=0.9).sent_tokens == 0
    assert world.load(A, at=0.9).computed_tokens == 0


def test_a_service_without_any_request_was_never_busy():
    world = World()
    assert world.ledger.service(SERVICE, 9.0) == (0, None)
    world.ledger.touch(SERVICE, 9.0)
    assert world.ledger.service(SERVICE, 10.0) == (0, 1.0)


def test_tokens_count_as_sent_until_a_scrape_begins_after_them():
    world = World()
    world.scrape(A, at=0.0)
    world.send("x", at=1.0, prompt=1000, cached=400)
    world.send("y", at=2.0, prompt=50)
    assert world.load(at=2.0).sent_tokens == 650
    world.scrape(A, at=1.5)
    assert world.load(at=2.0).sent_tokens == 50
    world.scrape(A, at=2.5)
    assert world.load(at=2.5).sent_tokens == 0


def test_tokens_sent_to_a_replica_that_is_never_scraped_are_forgotten_in_the_end():
    world = World()
    for number in range(100):
        world.send(number, at=float(number))
    assert 0 < world.load(at=100.0).sent_tokens <= 1000 * (STALE_S + 1)


def test_the_engine_computes_at_the_speed_of_its_cost_model_between_scrapes_and_no_more_than_there_is():
    world = World()
    world.scrape(A, at=0.0, waiting=10, waiting_prompt_tokens=30_000, cost=COST)
    full_step_s = 5e-3 + 2048 * 30e-6
    rate = 2048 / full_step_s
    assert world.load(at=0.5).computed_tokens == pytest.approx(0.5 * rate, rel=0.1)
    assert world.load(at=60.0).computed_tokens == 30_000
    # An idle engine has computed nothing of what comes now.
    world.send("x", at=60.0, prompt=500)
    load = world.load(at=60.0)
    assert (load.sent_tokens, load.computed_tokens) == (500, 30_000)


def test_what_is_sent_after_the_queue_ran_dry_is_still_to_be_computed_with_the_next_sample_too():
    world = World()
    world.send("x", at=0.9, prompt=800)
    world.scrape(A, at=0.0, cost=COST)
    load = world.load(at=0.9)
    assert (load.sent_tokens, load.computed_tokens) == (800, 0)


def test_an_engine_without_a_cost_model_counts_as_fast():
    world = World()
    world.scrape(A, at=0.0, waiting=1, waiting_prompt_tokens=9000)
    assert world.load(A, at=1.0).computed_tokens == 9000


def test_nothing_is_computed_while_the_engine_waits_for_kv_blocks():
    world = World()
    world.scrape(A, at=0.0, waiting=1, waiting_prompt_tokens=9000, cost=COST, kv_utilization=0.99)
    assert world.load(A, at=1.0).computed_tokens == 0


def test_requests_that_others_sent_show_in_the_sample():
    world = World()
    world.send("x")
    world.scrape(A, at=1.0, running=5, waiting=2)
    assert world.load(at=1.0).others == 6


def test_cached_tokens_are_those_of_the_blocks_that_were_sent_there_but_never_the_whole_prompt():
    world = World()
    prefix = tuple(range(1, 11))
    world.send("x", A, prompt=640, prefix=prefix)
    assert world.load(A, prompt=1000, prefix=(*prefix, 99)).cached_tokens == 640
    assert world.load(A, prompt=640, prefix=prefix).cached_tokens == 639
    assert world.load(B, prompt=640, prefix=prefix).cached_tokens == 0


def test_of_cached_tokens_those_behind_the_device_and_those_on_the_disk_are_known_where_events_tell_of_them():
    world, replica = World(), ReplicaBlocks()
    replica.block_size = 16
    world.ledger.publishes(SERVICE, A.address, replica)
    names, prefix = list(range(1, 41)), tuple(range(1, 11))
    replica.stored(names, None, "GPU")
    world.send("x", A, prompt=640, prefix=prefix)
    world.ledger.told("x", PromptBlocks(16, 640, struct.pack("<40Q", *names)), 0.0)
    replica.removed(names[10:], "GPU")
    replica.stored(names[10:20], None, "CPU")
    replica.stored(names[10:], None, "DISK")
    load = world.load(A, prompt=1000, prefix=(*prefix, 99))
    assert (load.cached_tokens, load.loaded_tokens, load.disk_tokens) == (640, 30 * 16, 20 * 16)
    load = world.load(B, prompt=1000, prefix=(*prefix, 99))
    assert (load.cached_tokens, load.loaded_tokens, load.disk_tokens) == (0, 0, 0)


def test_an_endpoint_that_is_gone_leaves_neither_cache_nor_account_behind():
    world = World()
    world.send("x", A, prefix=(1, 2))
    world.ledger.forget(SERVICE, A.address)
    assert world.load(A).in_flight == 1
    world.ledger.end("x", 1.0)
    world.endpoints.remove(A)
    assert A.address not in world.ledger._accounts
    world.endpoints.append(A)
    assert world.load(A, prefix=(1, 2)).cached_tokens == 0


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("begin"), st.integers(0, 5), st.booleans()),
            st.tuples(st.just("move"), st.integers(0, 5), st.booleans()),
            st.tuples(st.just("end"), st.integers(0, 5)),
            st.tuples(st.just("scrape"), st.booleans(), st.integers(0, 5000)),
        ),
        max_size=60,
    )
)
def test_counts_are_exact_and_estimates_within_what_is_known_after_anything(operations):
    world, at, running = World(), 0.0, set()
    for operation in operations:
        at += 0.25
        match operation:
            case ("begin", name, first):
                if name not in running:
                    world.send(name, A if first else B, at)
                running.add(name)
            case ("move", name, first):
                world.ledger.move(str(name), (A if first else B).address, at)
            case ("end", name):
                world.ledger.end(str(name), at)
                running.discard(name)
            case ("scrape", first, tokens):
                world.scrape(A if first else B, at, waiting=1, waiting_prompt_tokens=tokens, cost=COST)
        loads = [world.load(each, at) for each in (A, B)]
        assert sum(each.in_flight for each in loads) == len(running) == world.ledger.service(SERVICE, at)[0]
        for load in loads:
            waiting = load.sample.waiting_prompt_tokens if load.sample else 0
            assert 0 <= load.computed_tokens <= load.sent_tokens + waiting
    for name in range(6):
        world.ledger.end(str(name), at)
    assert [world.load(each, at).in_flight for each in (A, B)] == [0, 0]


class Answering(World):
    """Answers have 2,000 tokens, and half of the KV cache is in use: 32,000 tokens."""

    def __init__(self):
        super().__init__()
        for _ in range(10):
            self.estimates.learn(made("ended"), 2000)

    def growth(self, at, endpoint=A):
        """Tokens that the requests there add."""
        loads = self.ledger.candidates(CONFIG, made("?"), at, above=True).loads
        growth = next(each.growth for each in loads if each.endpoint == endpoint)
        return None if growth is None else round(growth.most(0, 0))

    def scrape(self, endpoint, at, **fields):
        super().scrape(endpoint, at, cost=COST, kv_utilization=0.5, **fields)

    def sent(self, count, at=0.0):
        for number in range(count):
            self.send(f"{number} {at}", A, at, prompt=0)


def test_answers_under_way_grow_to_their_expected_lengths():
    world = Answering()
    assert world.growth(0.0) is None
    world.sent(10)
    assert world.growth(0.0) == 10 * 2000
    step_s = COST.seconds(decode_work(EngineSample(0.0, kv_utilization=0.5, kv_cache_tokens=64_000), 10))
    world.scrape(A, 1500 * step_s, running=10)
    assert world.growth(1500 * step_s) == 10 * 500
    assert world.growth(1500 * step_s, B) is None


def test_answers_under_way_have_no_more_tokens_than_the_kv_cache_holds():
    """Requests that waited in the engine have generated fewer than those of their age."""
    world = Answering()
    world.sent(32)
    world.scrape(A, 100.0, running=32)
    assert world.growth(100.0) == 32 * 1000


@pytest.mark.parametrize("nothing", [{"path": "/tokenize"}, {"max_tokens": 0}])
def test_requests_that_generate_nothing_have_no_part_in_the_tokens_of_the_kv_cache(nothing):
    account, estimates = Account(), Estimates()
    requests = [made(1), made(2), replace(made(3), **nothing)]
    answers = [estimates.begin(request) for request in requests]
    for request, answer in zip(requests, answers, strict=True):
        account.arrive(request.request_id, Sent(SERVICE, A.address, 0.0, 0, 0, (), 64, answer))
    account.take(EngineSample(at=100.0, running=2, kv_utilization=0.5, kv_cache_tokens=4000))
    assert [round(answer.generated) for answer in answers] == [1000, 1000, 0]


def test_each_choice_of_a_request_takes_a_slot_and_grows():
    world = Answering()
    many = replace(made("many", prompt=0), choices=64)
    world.ledger.begin(many, Pick((A,), "only"), 0.0)
    assert world.load().in_flight == world.ledger.in_flight(A.address) == 64
    assert world.ledger.service(SERVICE, 0.0)[0] == 1
    assert world.growth(0.0) == 64 * 2000
    world.scrape(A, 1.0, running=64, waiting=2)
    assert world.load(at=1.0).others == 2
    world.ledger.move("many", B.address, 2.0)
    assert (world.load(A, 2.0).in_flight, world.load(B, 2.0).in_flight) == (0, 64)
    world.ledger.end("many", 3.0)
    assert world.load(B, 3.0).in_flight == 0


def test_where_no_request_generates_nothing_grows():
    world = Answering()
    world.ledger.begin(replace(made("x"), max_tokens=0), Pick((A,), "only"), 0.0)
    world.scrape(A, 1.0)
    assert world.growth(1.0) == 0


def test_growth_follows_requests_that_come_and_end():
    world = Answering()
    world.sent(2)
    assert world.growth(0.0) == 4000
    world.sent(1, at=1.0)
    assert world.growth(1.0) == 6000
    world.ledger.end("0 0.0", 2.0)
    world.ledger.end("1 0.0", 2.0)
    assert world.growth(2.0) == 2000
    world.ledger.move("0 1.0", B.address, 2.0)
    assert (world.growth(2.0), world.growth(2.0, B)) == (None, 2000)


def test_requests_of_other_gateways_grow_like_those_of_this_one():
    world = Answering()
    world.sent(2)
    world.scrape(A, 0.0, running=6)
    assert world.growth(0.0) == 6 * 2000


def test_growth_is_left_out_unless_it_is_asked_for():
    world = Answering()
    world.sent(2)
    assert world.load().growth is None
    assert world.load().answer_tokens == 2000


def test_the_flow_of_a_service_is_known_soon_and_counts_prompts_that_are_computed_once():
    world = World()
    assert world.ledger.flow(SERVICE, 0.0) == (0.0, 0.0)
    for number in range(400):
        world.send(f"r{number}", at=number / 8, prompt=1000, cached=600)
        if number in (23, 399):
            requests, tokens = world.ledger.flow(SERVICE, number / 8)
            assert requests == pytest.approx(8, rel=0.05)
            assert tokens == pytest.approx(400 * requests)
    world.ledger.begin(replace(made("moved"), handed_over=True), Pick((B,), "only"), 50.0)
    assert world.ledger.flow(SERVICE, 50.0)[0] < requests
    assert world.ledger.flow(SERVICE, 200.0)[0] < 1e-4


def test_an_engine_that_fell_asleep_has_nothing_cached():
    world = World()
    prefix = (11, 12, 13)
    world.send("x", A, at=1.0, prefix=prefix)
    world.send("y", B, at=1.0, prefix=prefix)
    for name in "xy":
        world.ledger.end(name, 2.0)
    cached = world.load(A, 3.0, prefix=prefix).cached_tokens
    assert cached > 0
    world.scrape(A, 3.0, asleep=True)
    assert world.load(A, 3.5, prefix=prefix).cached_tokens == 0
    assert world.load(B, 3.5, prefix=prefix).cached_tokens == cached
    world.send("z", A, at=4.0, prefix=prefix)
    world.ledger.end("z", 5.0)
    world.scrape(A, 5.5)
    assert world.load(A, 6.0, prefix=prefix).cached_tokens == cached


@pytest.mark.parametrize("ends", [True, False])
def test_what_was_sent_after_a_scrape_found_an_engine_asleep_stays_cached(ends):
    world = World()
    prefix = (11, 12, 13)
    world.scrape(A, 0.0, asleep=True)
    world.load(A, 0.0)
    world.send("x", A, at=1.0, prefix=prefix)
    world.scrape(A, 0.5, asleep=True)  # a page that was on its way
    if ends:
        world.ledger.end("x", 1.2)
    assert world.load(A, 1.5, prefix=prefix).cached_tokens > 0
