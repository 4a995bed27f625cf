"""Lines of load: each holds what changed, and all of them together give the load of the writer."""

import json

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.engines.ledger import Ledger
from inflight_gateway.hold.queue import HoldQueue
from inflight_gateway.state.demand import ClassDemand, DemandCounters
from inflight_gateway.state.load import GatewayLoads, ServiceLoad, line
from inflight_gateway.tenants.estimate import Estimates
from inflight_gateway.types import Endpoint, Pick, RequestView, ServiceConfig

KEY = ServiceKey("team", "chat")


def test_a_line_is_what_the_contract_says():
    demand = {
        "chat": ClassDemand(9, 900, 90_000, 450, refused=1, sent=6, sent_prompt_tokens=600, sent_output_tokens=300)
    }
    services = {KEY: ServiceLoad(2, 300, 1.23456, 5, 0.0, demand)}
    assert json.loads(line("gateway-0", services, full=True)) == {
        "gateway": "gateway-0",
        "full": True,
        "services": [
            {
                "namespace": "team",
                "name": "chat",
                "held": 2,
                "held_prompt_tokens": 300,
                "oldest_held_s": 1.235,
                "in_flight": 5,
                "idle_s": 0.0,
                "demand": {
                    "chat": {
                        "arrived": 9,
                        "prompt_tokens": 900,
                        "prompt_squares": 90_000,
                        "output_tokens": 450,
                        "refused": 1,
                        "sent": 6,
                        "sent_prompt_tokens": 600,
                        "sent_output_tokens": 300,
                    }
                },
            }
        ],
    }


A, B = Endpoint("10.0.0.1:8000", "a"), Endpoint("10.0.0.2:8000", "b")
OTHER = ServiceKey("team", "other")


class World:
    """Attributes: known: what a watcher knows that got the first full line and all changes."""

    def __init__(self):
        self.now = 0.0
        self.catalog, self.holds = Catalog(), HoldQueue()
        self.ledger = Ledger(self.catalog.endpoints_of, lambda _: None, Estimates())
        self.demand = DemandCounters(lambda _: 20.0)
        self.loads = GatewayLoads(self.catalog, self.holds, self.ledger, self.demand, lambda: self.now)
        self.set_service(KEY, True)
        self.catalog.update(endpoints={KEY: [A, B]})
        self.loads.changes()
        self.services = self.loads.service_loads()

    def set_service(self, key, exists):
        self.catalog.update(services={key: ServiceConfig(key, "u", "m") if exists else None})

    def read_changes(self):
        changes = self.loads.changes()
        self.services.update(changes)
        return changes


def without_times(services):
    return {key: replace(load, idle_s=load.idle_s is not None, oldest_held_s=0.0) for key, load in services.items()}


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(("offer", "remove", "release", "end")), st.integers(0, 5)),
        st.tuples(st.just("begin"), st.integers(0, 5), st.booleans()),
        st.tuples(st.just("move"), st.integers(0, 5), st.booleans()),
        st.tuples(st.just("forget"), st.booleans()),
        st.tuples(st.just("service"), st.booleans()),
        st.tuples(st.sampled_from(("arrived", "refused", "sent", "deleted")), st.sampled_from(("", "batch"))),
        st.tuples(st.just("line")),
    ),
    max_size=40,
)


@given(OPERATIONS)
def test_the_first_line_and_all_changes_together_are_the_load(operations):
    world, running = World(), set()
    for operation in operations:
        world.now += 0.25
        match operation:
            case ("offer", number):
                request = RequestView(f"held {number}", KEY, world.now, prompt_tokens=7)
                world.holds.offer(request, world.catalog.services[KEY], world.now)
            case ("remove", number):
                world.holds.remove(f"held {number}")
            case ("release", number):
                world.holds.release(world.now, lambda _, number=number: Pick((A,), "only") if number else None)
            case ("begin", number, first):
                if number not in running:
                    request = RequestView(str(number), KEY, world.now, prompt_tokens=10)
                    world.ledger.begin(request, Pick((A if first else B,), "only"), world.now)
                    running.add(number)
            case ("end", number):
                world.ledger.end(str(number), world.now)
                running.discard(number)
            case ("move", number, first):
                world.ledger.move(str(number), (A if first else B).address, world.now)
            case ("forget", first):
                world.ledger.forget(KEY, (A if first else B).address)
            case ("service", exists):
                world.set_service(OTHER, exists)
            case ("refused", name):
                world.demand.refused(RequestView("x", KEY, world.now, service_class=name))
            case (("arrived" | "sent") as what, name):
                request = RequestView("x", KEY, world.now, prompt_tokens=5, service_class=name)
                getattr(world.demand, what)(request, 20)
            case ("deleted", _):
                world.demand.forget(KEY)
                world.set_service(KEY, False)
                world.set_service(KEY, True)
            case _:
                world.read_changes()
    world.read_changes()
    now = world.loads.service_loads()
    known = {key: load for key, load in world.services.items() if key in now}
    assert without_times(known) == without_times(now)
    assert world.loads.changes() == {}


def test_time_that_passes_is_no_change_and_a_request_that_came_and_went_is_one():
    world = World()
    world.now += 60.0
    assert world.read_changes() == {}
    world.ledger.begin(RequestView("x", KEY, world.now), Pick((A,), "only"), world.now)
    world.ledger.end("x", world.now)
    assert world.read_changes() == {KEY: ServiceLoad(idle_s=0.0)}
    assert world.read_changes() == {}


def test_what_changes_takes_the_time_of_what_has_changed():
    world = World()
    world.catalog.update(
        services={(key := ServiceKey("team", str(n))): ServiceConfig(key, "u", "m") for n in range(50)}
    )
    world.read_changes()
    world.ledger.touch(KEY, world.now)
    assert list(world.read_changes()) == [KEY]
