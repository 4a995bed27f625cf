"""Any order of arrivals, ends, expiries and changes of endpoints: none is lost, none starts twice, none leaks."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.engines.ledger import Ledger
from inflight_gateway.guests.dispatcher import Dispatcher, Start
from inflight_gateway.hold.queue import HoldQueue
from inflight_gateway.pick.picker import Picker
from inflight_gateway.tenants.estimate import Estimates
from inflight_gateway.types import Endpoint, HoldBounds, Refusal, RequestView, ServiceConfig

KEY = ServiceKey("default", "a")
CONFIG = ServiceConfig(KEY, "uid", "m", max_num_seqs=2, hold=HoldBounds(max_requests=5, max_wait_s=10.0))


class World:
    def __init__(self):
        self.now = 100.0
        self.catalog = Catalog()
        self.catalog.update(services={KEY: CONFIG})
        self.holds = HoldQueue()
        self.ledger = Ledger(self.catalog.endpoints_of, lambda _: None, Estimates())
        self.dispatcher = Dispatcher(self.catalog, Picker(), self.holds, self.ledger, lambda: self.now, lambda: None)
        self.catalog.subscribe(self.dispatcher.catalog_changed)
        self.placed: dict[str, tuple[RequestView, object]] = {}

    def endpoints(self, count):
        self.catalog.update(endpoints={KEY: tuple(Endpoint(f"10.0.0.{one}:80", "p") for one in range(count))})

    def arrive(self, number):
        request = RequestView(str(number), KEY, self.now)
        self.placed[request.request_id] = request, self.dispatcher.place(request, CONFIG)

    def outcomes(self):
        done = {}
        for name, (_, outcome) in self.placed.items():
            if isinstance(outcome, Refusal):
                done[name] = outcome
            elif outcome.done():
                done[name] = outcome.result()
        return done

    def end(self, name):
        self.placed.pop(name)
        self.dispatcher.end(name, KEY)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.integers(0, 2)),
        st.tuples(st.just("end"), st.integers(0, 9)),
        st.tuples(st.just("endpoints"), st.integers(0, 3)),
        st.tuples(st.just("wait"), st.integers(1, 12)),
    ),
    max_size=40,
)


@given(STEPS)
def test_nothing_is_lost_or_leaks(steps):
    async def run():
        world, number = World(), 0
        for step, value in steps:
            if step == "arrive":
                for _ in range(value):
                    world.arrive(number)
                    number += 1
            elif step == "end" and world.placed:
                world.end(sorted(world.placed)[value % len(world.placed)])
            elif step == "endpoints":
                world.endpoints(value)
            elif step == "wait":
                world.now += value
                world.dispatcher.expire()
                world.dispatcher.release()
            done = world.outcomes()
            started = sum(isinstance(outcome, Start) for outcome in done.values())
            assert world.ledger.service(KEY, world.now)[0] == started
            assert len(world.holds) == len(world.placed) - len(done) <= CONFIG.hold.max_requests
        for name in list(world.placed):
            world.end(name)
        assert len(world.holds) == 0
        assert world.ledger.service(KEY, world.now)[0] == 0
        assert all(in_flight == 0 for in_flight, _ in world.ledger.sent().values())

    asyncio.run(run())


async def test_requests_start_when_an_endpoint_comes():
    world = World()
    for number in range(3):
        world.arrive(number)
    assert world.outcomes() == {}
    world.now += 1
    world.endpoints(1)
    starts = world.outcomes()
    assert starts
    assert all(start.held_s == 1.0 for start in starts.values())


async def test_a_request_for_a_deleted_service_is_refused():
    world = World()
    world.arrive(0)
    world.catalog.update(services={KEY: None})
    assert world.outcomes()["0"].status == 404


async def test_only_allowed_endpoints_are_picked():
    world = World()
    world.endpoints(3)
    outcome = world.dispatcher.place(RequestView("x", KEY, world.now), CONFIG, frozenset({"10.0.0.2:80"}))
    assert [one.address for one in outcome.result().pick.endpoints] == ["10.0.0.2:80"]


async def test_a_request_with_allowed_endpoints_does_not_keep_others_waiting():
    """They are another gateway's word, which may be busy or old."""
    world = World()
    world.endpoints(2)
    busy = frozenset({"10.0.0.0:80"})
    outcomes = [world.dispatcher.place(RequestView(str(number), KEY, world.now), CONFIG, busy) for number in range(8)]
    assert all(outcome.done() for outcome in outcomes)
    assert world.dispatcher.place(RequestView("free", KEY, world.now), CONFIG).done()


async def test_a_request_whose_allowed_endpoints_are_gone_is_refused_at_once():
    world = World()
    world.endpoints(2)
    refusal = world.dispatcher.place(RequestView("x", KEY, world.now), CONFIG, frozenset({"10.0.0.9:80"}))
    assert (refusal.status, refusal.code) == (503, "no_replica")
    assert len(world.holds) == 0


async def test_a_request_that_waits_is_refused_when_its_allowed_endpoints_go():
    world = World()
    world.endpoints(2)
    for number in range(8):
        world.arrive(number)
    waits = [name for name in world.placed if name not in world.outcomes()]
    assert waits
    outcome = world.dispatcher.place(RequestView("x", KEY, world.now + 1), CONFIG, frozenset({"10.0.0.1:80"}))
    assert not outcome.done()
    world.endpoints(1)
    assert outcome.result().status == 503
    assert len(world.holds) == len([name for name in world.placed if name not in world.outcomes()])


async def test_a_fault_of_the_scores_holds_up_nothing(caplog):
    class Faulty(Picker):
        def pick(self, *_, **__):
            raise ZeroDivisionError

    world = World()
    world.dispatcher._picker = Faulty()
    world.endpoints(2)
    for number in range(4):
        world.arrive(number)
    world.dispatcher.release()
    starts = world.outcomes().values()
    assert sorted(start.pick.endpoints[0].address for start in starts) == ["10.0.0.0:80"] * 2 + ["10.0.0.1:80"] * 2
    assert caplog.text.count("picking for default/a failed") == 1


@pytest.mark.parametrize("allowed", [(), frozenset({"10.0.0.1:80"})])
async def test_a_fault_of_the_ledger_holds_up_nothing(monkeypatch, caplog, allowed):
    world = World()
    world.endpoints(2)
    world.arrive("before")

    def fail(*_, **__):
        raise OverflowError

    monkeypatch.setattr(world.ledger, "loads", fail)
    outcome = world.dispatcher.place(RequestView("x", KEY, world.now), CONFIG, allowed)
    assert [one.address for one in outcome.result().pick.endpoints][:1] == ["10.0.0.1:80"]
    assert caplog.text.count("picking for default/a failed") == 1
    world.dispatcher.end("x", KEY)
    assert world.ledger.service(KEY, world.now)[0] == 1


async def test_beside_a_tenant_that_floods_a_slot_is_free_for_another():
    """The engine runs 2 at once and has one more in its queue."""
    world = World()
    world.endpoints(1)

    def place(name, tenant):
        return world.dispatcher.place(RequestView(name, KEY, world.now, tenant=tenant), CONFIG)

    flood = [place(f"flood {number}", "flood") for number in range(6)]
    assert sum(each.done() for each in flood) == 3
    first = place("steady 0", "steady")
    assert not first.done()
    world.dispatcher.end("flood 0", KEY)
    assert first.done()
    assert sum(each.done() for each in flood) == 3
    for name in ("flood 1", "flood 2", "steady 0", "flood 3"):
        world.dispatcher.end(name, KEY)
    assert [each.done() for each in flood] == [True] * 5 + [False]
    assert place("steady 1", "steady").done()
