"""The way of requests through the registry."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from inflight_base.manifest.engines import EngineType
from inflight_gateway.link.wire import Go, Held, Refuse
from inflight_gateway.pick.blocks import ReplicaBlocks
from inflight_gateway.pick.picker import Picker
from inflight_gateway.requests.record import Phase, Request
from inflight_gateway.requests.registry import RETURNS_S
from inflight_gateway.requests.settling import SETTLE_S
from inflight_gateway.types import PromptBlocks, RateLimits
from inflight_policies.service_counter import OUTPUT_TOKEN, PROMPT_TOKEN
from tests.gateway.requests.world import CONFIG, KEY, World

LIMITED = replace(CONFIG, default_limits=RateLimits(tokens_per_minute=1000, concurrent_requests=3))


def test_a_request_goes_to_the_replicas_that_are_picked_best_first():
    world = World(endpoints=2)
    (go,) = world.ask("a")
    assert isinstance(go, Go)
    assert (go.id, go.attempt, len(go.endpoints)) == ("a", 1, 2)
    assert world.in_flight() == {go.endpoints[0]: 1}
    world.end("a")
    world.assert_empty()


def test_prompts_whose_blocks_are_told_are_counted_by_the_exact_index_where_events_tell_of_them():
    world = World(replace(CONFIG, engine=EngineType("vllm")), endpoints=1)
    replica = ReplicaBlocks()
    world.ledger.publishes(KEY, "10.0.0.0:80", replica)
    body = {"blocks": struct.pack("<2Q", 7, 8), "prompt_tokens": 150}
    told = PromptBlocks(16, 160, struct.pack("<10Q", *range(1, 11)))
    (go,) = world.ask("a", **body)
    assert go.block_size == 0
    replica.stored(range(1, 11), None, "GPU")
    replica.block_size = 16
    world.requests.told("a", 1, told)
    world.requests.told("never known", 1, told)
    world.end("a", cached_tokens=0)
    (go,) = world.ask("b", **body)
    assert go.block_size == 16
    assert world.value("cached_tokens_predicted_total", index="exact") == 128
    world.end("b", cached_tokens=144)
    assert world.value("cached_tokens_found_total", index="exact") == 144
    replica.removed([9, 10], "GPU")  # the second hash's text has 8.5 blocks
    world.ask("c", **body)
    world.end("c")
    assert world.value("cached_tokens_predicted_total", index="exact") == 2 * 128
    replica.removed([8], "GPU")
    world.ask("d", **body)
    world.end("d")
    assert world.value("cached_tokens_predicted_total", index="exact") == 2 * 128 + 64
    world.ledger.publishes(KEY, "10.0.0.0:80", None)
    world.ask("e", **body)
    world.end("e")
    assert world.value("cached_tokens_predicted_total", index="approximate") == 128
    world.assert_empty()


def test_blocks_that_a_later_attempt_computes_are_not_those_of_the_prompt_alone():
    world = World(endpoints=1)
    replica = ReplicaBlocks()
    world.ledger.publishes(KEY, "10.0.0.0:80", replica)
    replica.stored([1], None, "GPU")
    world.ask("a", 2, blocks=struct.pack("<Q", 7), prompt_tokens=64)
    world.requests.told("a", 2, PromptBlocks(16, 16, struct.pack("<Q", 1)))
    assert not world.ledger.exact(KEY, "10.0.0.0:80")


def test_each_earlier_attempt_used_up_one_replica():
    world = World(replace(CONFIG, max_attempts=2), endpoints=3)
    world.ask("a")
    (go,) = world.ask("a", 2)
    assert len(go.endpoints) == 1


def test_a_request_that_has_to_wait_is_told_so_at_once_and_starts_when_an_endpoint_comes():
    world = World()
    assert world.ask("a") == [Held("a", 1)]
    world.now += 1
    world.endpoints(1)
    assert isinstance(world.said[-1], Go)
    assert world.value("held_seconds_sum") == 1.0


def test_a_request_is_refused_after_the_longest_wait():
    world = World()
    world.ask("a")
    world.now += 11
    world.requests.expire()
    assert (world.said[-1].status, world.said[-1].code) == (503, "no_replica")
    world.end("a", 503, ())
    world.assert_empty()


def test_the_end_of_one_starts_the_next():
    world = World(endpoints=1)
    started = [name for name in "abcdef" if isinstance(world.ask(name)[0], Go)]
    assert 2 <= len(started) < 6
    world.end(started[0])
    assert sum(isinstance(one, Go) for one in world.said) == len(started) + 1


def test_requests_for_deleted_services_are_refused():
    world = World()
    world.ask("a")
    world.catalog.update(services={KEY: None})
    assert world.said[-1].status == 404
    (refusal,) = world.ask("b")
    assert (refusal.status, refusal.code) == (404, "service_not_found")


def test_replicas_that_refused_are_reported_and_the_request_is_counted_where_it_is():
    world = World(endpoints=2)
    (go,) = world.ask("a")
    first, second = go.endpoints
    world.requests.answering("a", 1, second, [first])
    assert world.refused == [first]
    assert world.in_flight() == {second: 1}


def test_messages_on_an_earlier_attempt_change_nothing():
    world = World(endpoints=2)
    world.ask("a")
    world.ask("a", 2)
    before = world.in_flight()
    for late in (
        lambda: world.requests.left("a", 1),
        lambda: world.requests.answering("a", 1, "10.0.0.9:80"),
        lambda: world.ask("a", 1),
        lambda: world.requests.left("unknown", 1),
    ):
        late()
        assert world.in_flight() == before
    assert sum(before.values()) == 1


def test_an_attempt_that_failed_is_not_in_flight_until_the_next_one():
    world = World(LIMITED, endpoints=2)
    world.ask("a", tenant="acme")
    world.requests.left("a", 1)
    assert world.in_flight() == {}
    assert not any(one.in_flight for one in world.gate._accounts.values())
    world.ask("a", 2, tenant="acme")
    assert sum(world.in_flight().values()) == 1
    world.end("a")
    world.assert_empty()


def test_a_relay_that_did_not_wait_for_the_picker_is_followed():
    """It picks by itself after 200 ms."""
    world = World(endpoints=1)
    for name in "abcd":
        world.ask(name)
    held = [one.id for one in world.said if isinstance(one, Held)]
    world.requests.answering(held[0], 1, "10.0.0.0:80")
    assert len(world.holds) == len(held) - 1
    assert world.in_flight() == {"10.0.0.0:80": 4 - len(held) + 1}
    before = len(world.said)
    for name in "abcd":
        world.end(name)
    assert held[0] not in [one.id for one in world.said[before:]]
    world.assert_empty()


def test_a_stream_that_breaks_ends_its_requests_alone():
    world = World(endpoints=1)
    for number in range(5):
        world.ask(f"{number}", relay=f"r{number % 2}")
    world.requests.lost("r0")
    assert len(world.requests) == 2
    assert world.value("requests_total", status="unknown") is None
    world.now += RETURNS_S
    world.requests.expire()
    assert world.value("requests_total", status="unknown") == 3
    world.requests.lost("r1")
    world.assert_empty()


def test_no_held_request_of_a_stream_that_broke_starts_while_its_requests_end():
    world = World(endpoints=1)
    for number in range(5):
        world.ask(f"{number}", relay="r0")
    before = list(world.said)
    assert any(isinstance(one, Held) for one in before)
    world.requests.lost("r0")
    assert world.said == before
    world.assert_empty()


def test_usage_of_a_relay_that_died_is_what_it_reported_last():
    world = World(endpoints=1)
    world.ask("a", tenant="acme", prompt_tokens=20)
    world.requests.answering("a", 1, "10.0.0.0:80")
    world.requests.progress([("a", 31)])
    world.requests.lost("r0")
    world.now += RETURNS_S
    world.requests.expire()
    tokens = {kind: world.value("tenant_tokens_total", tenant="acme", kind=kind) for kind in ("prompt", "completion")}
    assert tokens == {"prompt": 20, "completion": 31}
    world.assert_empty()


def test_a_relay_that_connects_again_asks_again_before_the_old_streams_end_is_known():
    world = World()
    world.ask("a", relay="old")
    assert world.ask("a", relay="new") == [Held("a", 1)]
    world.requests.lost("old")
    assert len(world.requests) == len(world.holds) == 1
    world.end("a")
    world.assert_empty()


def test_a_relay_that_comes_back_reports_its_requests_itself_wherever_they_are_now():
    """Its owner hung, and another picker has had them meanwhile."""
    world = World(endpoints=1)
    world.requests.hello("relay", "old")
    world.requests.hello("other", "r1")
    for name, relay in (("a", "old"), ("b", "old"), ("c", "r1")):
        world.ask(name, relay=relay)
    world.requests.lost("old")
    world.requests.lost("r1")
    world.requests.hello("relay", "new")
    world.runs("a", relay="new", tokens=3)
    world.now += RETURNS_S
    world.requests.expire()
    assert world.value("requests_total", status="unknown") == 1  # that of the relay that is gone
    world.end("a")
    world.assert_empty()


def test_attempts_that_run_when_the_picker_starts_are_in_flight_and_their_usage_counts():
    world = World(LIMITED, endpoints=1)
    world.runs("a", tenant="acme", tokens=4000, prompt_tokens=10)
    assert world.in_flight() == {"10.0.0.0:80": 1}
    assert world.value("tenant_requests_in_flight", tenant="acme") == 1
    world.requests.progress([("a", 4000)])
    world.end("a", tenant="acme", prompt_tokens=10, completion_tokens=5010)
    assert world.value("tenant_tokens_total", tenant="acme", kind="completion") == 5010
    # 1,010 tokens followed, and those of before are not charged again.
    assert world.ask("b", tenant="acme", max_tokens=10)[0].status == 429
    assert world.gate._accounts[KEY, "acme"].tokens.used == 1010
    world.end("b", 429, ())
    world.assert_empty()


def test_usage_counts_where_the_picker_knows_nothing_of_the_request():
    """It was under way while the picker restarted, and ended before the relay said that it runs."""
    world = World(endpoints=1)
    world.end("a", tenant="acme", prompt_tokens=10, completion_tokens=7)
    assert world.value("tenant_tokens_total", tenant="acme", kind="completion") == 7
    assert world.value("tenant_requests_total", tenant="acme") == 1
    assert world.value("requests_total", status="200") == 1


def test_a_continuation_that_outlives_the_picker_is_not_refused_by_limits():
    world = World(replace(CONFIG, default_limits=RateLimits(requests_per_minute=1)), endpoints=1)
    world.ask("a")
    assert isinstance(world.ask("b", 2)[0], Go)
    assert world.ask("c")[0].status == 429


def test_refusals_of_the_relay_are_counted_by_their_code_and_wrong_keys_by_service():
    world = World()
    world.end("a", 401, (), error="invalid_api_key")
    world.end("b", 0, (), error="client_left")
    assert world.value("refusals_total", code="invalid_api_key") == 1
    assert world.value("refusals_total", code="client_left") is None
    assert world.value("tenant_refused_total", tenant="anonymous", reason="key") == 1


def test_a_refusal_of_the_picker_is_counted_once():
    world = World()
    world.ask("a")
    world.now += 11
    world.requests.expire()
    world.end("a", 503, (), error="no_replica")
    assert world.value("refusals_total", code="no_replica") == 1
    assert world.value("requests_total", status="503") == 1


# Charges as tokens come.


def ahead(world, charged="acme", other="other"):
    """How far the counter of a tenant is ahead of the other's, in units of a prompt token. Both wait."""
    queue = world.holds._services[KEY]
    return queue._classes["default"].counters.ahead(charged) - queue._classes["default"].counters.ahead(other)


def waiting(world):
    """Two tenants wait, and one has a running request."""
    world.endpoints(1)
    world.ask("run", tenant="acme", prompt_tokens=50, max_tokens=10)
    world.endpoints(0)
    world.ask("one", tenant="acme")
    world.ask("two", tenant="other")


def test_output_is_charged_to_the_counter_as_it_comes_and_the_end_charges_the_rest():
    world = World()
    waiting(world)
    before = ahead(world)
    world.requests.progress([("run", 31)])
    assert ahead(world) - before == pytest.approx(30 * OUTPUT_TOKEN / PROMPT_TOKEN)
    world.requests.progress([("run", 41)])
    world.end("run", completion_tokens=51)
    assert ahead(world) - before == pytest.approx(50 * OUTPUT_TOKEN / PROMPT_TOKEN)


def test_the_prompt_of_a_continuation_is_not_charged_again():
    world = World()
    waiting(world)
    before = ahead(world)
    world.requests.left("run", 1)
    world.ask("run", 2, tenant="acme", prompt_tokens=5000)
    world.endpoints(1)
    assert isinstance(world.heard("run")[-1], Go)
    assert ahead(world) == before


def test_output_beyond_the_estimate_counts_against_the_limit_before_the_request_ends():
    world = World(LIMITED, endpoints=2)
    world.ask("a", tenant="acme", prompt_tokens=100, max_tokens=100)
    assert isinstance(world.ask("b", tenant="acme", max_tokens=100)[0], Go)
    world.requests.progress([("a", 880)])
    refusal = world.ask("c", tenant="acme", max_tokens=100)[0]
    assert (refusal.status, refusal.code) == (429, "rate_limit_exceeded")
    world.end("a", prompt_tokens=100, completion_tokens=890)
    world.end("b", prompt_tokens=1, completion_tokens=0)
    world.end("c", 429, ())
    remaining = dict(world.ask("d", tenant="acme", max_tokens=0)[0].headers)["x-ratelimit-remaining-tokens"]
    assert remaining == str(1000 - 990 - 1)


# Requests that another picker has had, or gets.


def test_a_request_that_another_picker_admitted_is_not_refused_here():
    world = World(replace(CONFIG, default_limits=RateLimits(requests_per_minute=1)))
    assert isinstance(world.ask("first", tenant="acme")[0], Held)
    assert isinstance(world.ask("moved", tenant="acme", admitted=True)[0], Held)
    for number in range(10):  # more than the queue holds
        assert isinstance(world.ask(f"{number}", tenant=f"t{number}", admitted=True)[0], Held)
    assert world.ask("new", tenant="acme")[0].status == 429
    assert world.ask("other", tenant="other")[0].status == 503


def test_a_request_that_has_waited_elsewhere_keeps_its_place_and_its_longest_wait():
    world = World()
    world.ask("later", waited_s=1.0, admitted=True)
    world.ask("earlier", waited_s=7.0, admitted=True)
    world.ask("new")
    world.now += 3
    world.requests.expire()
    assert [type(one) for one in world.heard("earlier")] == [Held, Refuse]
    world.endpoints(1)
    assert [one.id for one in world.said if isinstance(one, Go)] == ["later", "new"]
    assert world.value("held_seconds_sum") == 4.0 + 3.0


def test_requests_that_move_to_another_picker_leave_nothing_but_the_charges_of_the_minute():
    world = World(LIMITED, endpoints=1)
    for number in range(6):
        world.ask(f"{number}", relay=f"r{number % 2}", tenant=f"t{number}", prompt_tokens=100)
    before = [one.id for one in world.said if isinstance(one, Go)]
    world.requests.released(KEY, "r0")
    assert {one.relay for one in world.requests._requests.values()} == {"r1"}
    # Those of the other relay have the room, unless a third one says what else runs there.
    assert before == [one.id for one in world.said if isinstance(one, Go)]
    world.now += SETTLE_S
    world.requests.expire()
    started = [one.id for one in world.said if isinstance(one, Go)]
    assert set(started) - set(before) == {"1", "3", "5"} - set(before)
    for number in (1, 3, 5):
        world.end(f"{number}")
    world.assert_empty()
    assert world.gate._accounts[KEY, "t0"].tokens.used > 100
    assert world.value("tenant_requests_total", tenant="t0") == 0
    assert world.value("requests_total", status="unknown") is None


def test_a_request_comes_back_to_a_picker_that_had_it_before():
    world = World(LIMITED, endpoints=1)
    world.ask("a", tenant="acme", prompt_tokens=10, max_tokens=100)
    world.requests.released(KEY, "r0")
    world.runs("a", tenant="acme", tokens=40)
    assert world.in_flight() == {"10.0.0.0:80": 1}
    world.requests.moved("a")
    assert world.in_flight() == {}
    world.runs("a", 2, tenant="acme", tokens=60, prompt_tokens=10)
    world.end("a", tenant="acme", prompt_tokens=10, completion_tokens=70)
    assert world.value("tenant_tokens_total", tenant="acme", kind="completion") == 70
    assert world.gate._accounts[KEY, "acme"].tokens.used == 110 + 10
    world.assert_empty()


def test_an_attempt_that_moved_before_an_engine_answered_is_counted_where_it_is():
    world = World(endpoints=2)
    first, second = "10.0.0.0:80", "10.0.0.1:80"
    world.runs("a", address=first)
    world.requests.answering("a", 1, second, [first])
    assert world.in_flight() == {second: 1}
    world.end("a")
    world.assert_empty()


@pytest.mark.parametrize("leaves", ["released", "moved"])
def test_a_held_request_that_moves_away_and_comes_back_is_charged_once(leaves):
    world = World(replace(CONFIG, default_limits=RateLimits(tokens_per_minute=1000, requests_per_minute=10)))

    def charged():
        account = world.gate._accounts[KEY, "acme"]
        return account.requests.used, account.tokens.used, account.in_flight

    world.ask("a", tenant="acme", prompt_tokens=20, max_tokens=100)
    world.requests.released(KEY, "r0") if leaves == "released" else world.requests.moved("a")
    assert charged() == (0, 0, 0)
    world.ask("a", tenant="acme", prompt_tokens=20, max_tokens=100, admitted=True)
    assert charged() == (1, 120, 1)


# Other gateways.


def test_only_allowed_endpoints_are_picked():
    world = World(endpoints=3)
    assert world.ask("x", allowed={"10.0.0.2:80"})[0].endpoints == ("10.0.0.2:80",)


def test_a_request_with_allowed_endpoints_does_not_keep_others_waiting():
    """They are another gateway's word, which may be busy or old."""
    world = World(endpoints=2)
    assert all(isinstance(world.ask(f"{number}", allowed={"10.0.0.0:80"})[0], Go) for number in range(8))
    assert isinstance(world.ask("free")[0], Go)


def test_a_request_whose_allowed_endpoints_are_gone_is_refused_at_once_or_when_they_go():
    world = World(endpoints=2)
    refusal = world.ask("x", allowed={"10.0.0.9:80"})[0]
    assert (refusal.status, refusal.code) == (503, "no_replica")
    for number in range(8):
        world.ask(f"{number}")
    assert isinstance(world.ask("y", allowed={"10.0.0.1:80"})[0], Held)
    world.endpoints(1)
    assert world.heard("y")[-1].status == 503


def test_requests_that_generate_nothing_wait_for_nothing_and_touch_nothing():
    world = World()
    assert world.requests.least_requests(CONFIG, None).status == 503
    assert world.ledger.service(KEY, world.now) == (0, None)
    world.endpoints(2)
    busy = world.ask("a")[0].endpoints[0]
    assert world.requests.least_requests(CONFIG, None)[-1] == busy


# Faults of the gateway itself.


def test_a_fault_of_the_scores_holds_up_nothing(caplog):
    class Faulty(Picker):
        def pick(self, *_, **__):
            raise ZeroDivisionError

    world = World(endpoints=2)
    world.requests._starter._picker = Faulty()
    firsts = [world.ask(f"{number}")[0].endpoints[0] for number in range(4)]
    assert sorted(firsts) == ["10.0.0.0:80"] * 2 + ["10.0.0.1:80"] * 2
    assert caplog.text.count("picking for default/a failed") == 1


@pytest.mark.parametrize("allowed", [(), frozenset({"10.0.0.1:80"})])
def test_a_fault_of_the_ledger_holds_up_nothing(monkeypatch, caplog, allowed):
    world = World(endpoints=2)
    world.ask("before")

    def fail(*_, **__):
        raise OverflowError

    monkeypatch.setattr(world.ledger, "candidates", fail)
    assert world.ask("x", allowed=allowed)[0].endpoints[:1] == ("10.0.0.1:80",)
    assert caplog.text.count("picking for default/a failed") == 1


def test_a_transition_that_cannot_be_raises():
    request = Request("r0", lambda _: None, view=type("View", (), {"request_id": "a"})())
    with pytest.raises(AssertionError, match="AWAITING to ANSWERING"):
        request.move(Phase.ANSWERING)


def test_beside_a_tenant_that_floods_a_slot_is_free_for_another():
    """The engine runs 2 at once and has one more in its queue."""
    world = World(endpoints=1)

    def started(*names):
        return [any(isinstance(one, Go) for one in world.heard(name)) for name in names]

    flood = [f"flood {number}" for number in range(6)]
    for name in flood:
        world.ask(name, tenant="flood")
    assert sum(started(*flood)) == 3
    world.ask("steady 0", tenant="steady")
    assert not any(started("steady 0"))
    world.end("flood 0")
    assert all(started("steady 0"))
    assert sum(started(*flood)) == 3
    for name in ("flood 1", "flood 2", "steady 0", "flood 3"):
        world.end(name)
    assert started(*flood) == [True] * 5 + [False]
    assert isinstance(world.ask("steady 1", tenant="steady")[0], Go)


def test_refusals_name_the_attempt():
    world = World(endpoints=0)
    world.ask("a")
    world.catalog.update(services={KEY: None})
    assert isinstance(world.said[-1], Refuse)
    assert (world.said[-1].id, world.said[-1].attempt) == ("a", 1)


@pytest.mark.parametrize(
    "ends", ["after the stream is back", "in between", "on the new stream, before the old one ends"]
)
def test_a_request_whose_stream_broke_and_came_back_is_counted_once(ends):
    world = World(replace(CONFIG, default_limits=RateLimits(tokens_per_minute=1000)), endpoints=1)
    world.ask("a", tenant="acme", prompt_tokens=20, max_tokens=100)
    world.requests.answering("a", 1, "10.0.0.0:80")
    world.requests.progress([("a", 31)])
    if ends.startswith("on"):
        world.runs("a", relay="r0 again", tenant="acme", tokens=31)
        world.requests.lost("r0")
        assert world.in_flight() == {"10.0.0.0:80": 1}
    else:
        world.requests.lost("r0")
        assert world.in_flight() == {}
    if ends.startswith("after"):
        world.runs("a", relay="r0 again", tenant="acme", tokens=31)
        assert world.in_flight() == {"10.0.0.0:80": 1}
    world.end("a", tenant="acme", prompt_tokens=20, completion_tokens=40)
    world.now += RETURNS_S
    world.requests.expire()
    world.assert_empty()
    tokens = {kind: world.value("tenant_tokens_total", tenant="acme", kind=kind) for kind in ("prompt", "completion")}
    assert tokens == {"prompt": 20, "completion": 40}
    assert world.value("tenant_requests_total", tenant="acme") == 1
    assert (world.value("requests_total", status="200"), world.value("requests_total", status="unknown")) == (1, None)
    assert world.gate._accounts[KEY, "acme"].tokens.used == 60


def test_a_held_request_whose_stream_broke_is_charged_once():
    world = World(replace(CONFIG, default_limits=RateLimits(tokens_per_minute=1000, requests_per_minute=10)))
    for stream in ("r0", "r0 again"):
        assert world.ask("a", relay=stream, tenant="acme", prompt_tokens=20, max_tokens=100) == [Held("a", 1)]
        world.requests.lost("r0")
    account = world.gate._accounts[KEY, "acme"]
    assert (account.requests.used, account.in_flight) == (1, 1)
    world.end("a", endpoints=())
    world.assert_empty()


def test_an_answer_under_way_passes_the_queue_of_requests_without_a_replica(monkeypatch):
    world = World(endpoints=1)
    monkeypatch.setattr(world.holds, "offer", None)
    (go,) = world.ask("moves", 2, handed_over=True)
    assert isinstance(go, Go)
    world.end("moves")
    world.assert_empty()


def test_an_answer_under_way_that_no_replica_can_take_is_held_and_neither_refused_nor_demand():
    world = World(replace(CONFIG, hold=replace(CONFIG.hold, max_requests=1)))
    world.ask("waits")
    (held,) = world.ask("moves", 2, handed_over=True)
    assert isinstance(held, Held)
    demand = world.demand.of(KEY)["default"]
    assert (demand.arrived, demand.refused) == (1, 0)
    world.endpoints(1)
    assert isinstance(world.heard("moves")[-1], Go), "where its relay has lost the replica before it stays there"
    for name in ("waits", "moves"):
        world.end(name)
    world.assert_empty()
