"""Shares of tenants, and the slots that they leave to others."""

from hypothesis import given
from hypothesis import strategies as st

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.hold.shares import ACTIVE_S, RECENT_S, TenantShares
from inflight_gateway.types import RequestView, ServiceConfig, TenantConfig

SERVICE = ServiceKey("default", "chat")
CONFIG = ServiceConfig(key=SERVICE, uid="u", model="m", tenants=(TenantConfig("heavy", weight=3.0),))


def request(name, tenant):
    return RequestView(str(name), SERVICE, 0.0, tenant=tenant)


class World:
    def __init__(self):
        self.shares = TenantShares()
        self.count = 0

    def start(self, tenant, at=0.0, size=1):
        self.count += 1
        one = request(self.count, tenant)
        self.shares.arrived(one, CONFIG, at)
        self.shares.started(one, size)
        return one.request_id

    def arrive(self, tenant, at=0.0):
        self.shares.arrived(request("waits", tenant), CONFIG, at)

    def above(self, tenant, at=0.0):
        return self.shares.above(request("?", tenant), at)

    def below(self, tenant, at=0.0):
        return self.shares.below(request("?", tenant), at)


def test_a_tenant_alone_is_never_above_its_share():
    world = World()
    for _ in range(100):
        world.start("a")
    assert not world.above("a")
    assert not world.below("a")
    assert not world.above("never came")
    assert not world.below("never came")


def test_a_tenant_that_floods_is_above_its_share_until_the_other_was_silent_for_a_minute():
    world = World()
    other = world.start("b")
    world.shares.ended(other)
    for _ in range(7):
        world.start("a", at=1.0)
    assert world.above("a", at=ACTIVE_S - 1)
    assert not world.above("b", at=ACTIVE_S - 1)
    assert not world.above("a", at=ACTIVE_S)


def test_requests_count_as_the_slots_that_they_are_worth():
    """A few long answers fill the KV cache, and hold up many short ones, which would else count as the flood."""
    world = World()
    for _ in range(30):
        world.start("short")
    long = [world.start("long", size=11) for _ in range(5)]
    assert world.above("long")
    assert not world.above("short")
    for each in long[:3]:
        world.shares.ended(each)
    assert world.above("short")
    assert not world.above("long")


def test_each_choice_of_a_request_counts_in_the_slots_that_are_claimed():
    world = World()
    world.start("a", at=1.0)
    for _ in range(300):
        one = RequestView("many", SERVICE, 0.0, tenant="b", choices=8)
        world.shares.arrived(one, CONFIG, 2.0)
        world.shares.started(one, 8)
        world.shares.ended("many")
    assert world.shares.claimed(SERVICE, 3.0) == 8


def test_a_tenant_whose_request_runs_for_long_stays_active():
    world = World()
    world.start("b")
    for _ in range(7):
        world.start("a", at=2 * ACTIVE_S)
    assert world.above("a", at=2 * ACTIVE_S)


def test_shares_are_by_weight():
    world = World()
    for _ in range(3):
        world.start("heavy")
    world.start("light")
    assert not world.above("heavy")
    assert not world.above("light")
    world.start("light")
    assert world.above("light")
    assert not world.above("heavy")


def test_requests_of_a_service_that_is_gone_do_not_count_for_its_successor():
    world = World()
    old = world.start("a")
    world.shares.forget(SERVICE)
    assert not world.above("a")
    world.arrive("a")
    world.arrive("b")
    world.shares.ended(old)
    assert not world.above("a")
    world.start("a")
    assert world.above("a")


@given(
    st.lists(
        st.tuples(st.sampled_from(["arrive", "start", "end", "wait"]), st.sampled_from(["heavy", "b", "c"])),
        max_size=60,
    )
)
def test_of_the_active_tenants_one_is_never_above_and_none_is_without_requests_in_flight(steps):
    world, running, now = World(), [], 0.0
    for step, tenant in steps:
        if step == "arrive":
            world.arrive(tenant, now)
        elif step == "start":
            running.append((world.start(tenant, now), tenant))
        elif step == "end" and running:
            world.shares.ended(running.pop(0)[0])
        elif step == "wait":
            now += ACTIVE_S / 3
        in_flight = {tenant for _, tenant in running}
        above = {tenant for tenant in ("heavy", "b", "c") if world.above(tenant, now)}
        below = {tenant for tenant in ("heavy", "b", "c") if world.below(tenant, now)}
        assert not above & below
        assert bool(above) == bool(below)
        assert above <= in_flight
        assert len(above) < 3
        assert 0 <= world.shares.claimed(SERVICE, now) <= 1 + len(steps)
    for name, _ in running:
        world.shares.ended(name)
    assert not any(world.above(tenant, now) for tenant in ("heavy", "b", "c"))


def test_requests_within_their_share_claim_the_slots_that_most_of_them_needed_less_those_that_run():
    world = World()
    world.arrive("b")
    for _ in range(20):
        world.start("a")
    for _ in range(200):
        names = [world.start("b") for _ in range(4)]
        for name in names:
            world.shares.ended(name)
    assert world.shares.claimed(SERVICE, 0.0) in (4, 5)
    world.start("b")
    assert world.shares.claimed(SERVICE, 0.0) in (3, 4)
    assert world.shares.claimed(ServiceKey("default", "unknown"), 0.0) == 0


def test_slots_are_not_claimed_for_long_after_a_burst():
    """However few requests come after it: their number alone would bring the claim down in an hour."""
    world = World()
    world.arrive("b")
    for _ in range(2000):
        world.start("flood")
    burst = [world.start("b") for _ in range(300)]
    for name in burst:
        world.shares.ended(name)
    assert world.shares.claimed(SERVICE, 1.0) > 200
    for second in range(1, int(2 * RECENT_S)):
        world.shares.ended(world.start("b", at=float(second)))
    assert world.shares.claimed(SERVICE, 2 * RECENT_S) <= 2


def test_a_service_without_arrivals_claims_one_slot_besides_those_that_run():
    world = World()
    world.arrive("b")
    for _ in range(2000):
        world.start("flood")
    names = [world.start("b") for _ in range(20)]
    for name in names[:5]:
        world.shares.ended(name)
    assert world.shares.claimed(SERVICE, 1.0) > 1
    assert world.shares.claimed(SERVICE, 1e6) == 1
