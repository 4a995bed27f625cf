"""Slots kept free of tenants above their share: who may use them, and that they cost no more than their bound."""

from collections import Counter, deque
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.hold import service_queue
from inflight_gateway.hold.queue import HoldQueue
from inflight_gateway.hold.shares import TenantShares
from inflight_gateway.pick.late_binding import MOST_FREE, SPARE_SLOTS, most_outstanding
from inflight_gateway.types import Endpoint, HoldBounds, Pick, RequestView, ServiceClass, ServiceConfig

SERVICE = ServiceKey("default", "chat")
CONFIG = ServiceConfig(SERVICE, "u", "m", hold=HoldBounds(max_requests=10**6), classes=(ServiceClass("x", 2.0),))
PICK = Pick((Endpoint("10.0.0.1:8000", "pod"),), "only")


class World:
    """A replica whose running requests end the oldest first."""

    def __init__(self, slots):
        self.slots = slots
        self.queue, self.shares = HoldQueue(), TenantShares()
        self.running, self.count, self.now = deque(), 0, 0.0
        self.waiting = {}
        self.started = []

    def arrive(self, tenant, tokens=100, service_class="default"):
        self.count += 1
        made = RequestView(
            str(self.count),
            SERVICE,
            self.now,
            prompt_tokens=tokens,
            tenant=tenant,
            service_class=service_class,
        )
        assert self.queue.offer(made, CONFIG, self.now) is None
        self.shares.arrived(made, CONFIG, self.now)
        self.waiting[made.request_id] = made
        self.release()

    def end(self):
        if self.running:
            self.shares.ended(self.running.popleft().request_id)
            self.release()

    def end_all_of(self, tenant):
        for each in [each for each in self.running if each.tenant == tenant]:
            self.running.remove(each)
            self.shares.ended(each.request_id)
            self.release()

    def room(self, tenant):
        above = self.shares.above(RequestView("?", SERVICE, self.now, tenant=tenant), self.now)
        return most_outstanding(self.slots, above, self.shares.claimed(SERVICE, self.now)) - len(self.running)

    def release(self):
        def can_start(request):
            if self.room(request.tenant) <= 0:
                return None
            self.running.append(request)
            self.shares.started(request)
            return PICK

        for request, _ in self.queue.release(self.now, can_start, SERVICE, self.shares.above):
            del self.waiting[request.request_id]
            self.started.append(request)

    def in_flight(self):
        return Counter(each.tenant for each in self.running)


def flooded(slots=8, requests=100):
    """A tenant that came before, and one that floods."""
    world = World(slots)
    world.arrive("steady")
    world.end()
    for _ in range(requests):
        world.arrive("flood")
    return world


def test_a_request_below_its_share_passes_a_head_that_is_above_its_own():
    world = flooded()
    assert world.in_flight() == {"flood": 7}
    for _ in range(2):
        world.arrive("steady", tokens=1000)
    assert world.in_flight() == {"flood": 7, "steady": 2}


def test_a_request_of_another_class_passes_too():
    world = flooded()
    for _ in range(2):
        world.arrive("steady", tokens=1000, service_class="x")
    assert world.in_flight()["steady"] == 2


def test_no_request_passes_a_head_of_a_tenant_that_is_within_its_share():
    queue = HoldQueue()
    for name in ("first", "second"):
        queue.offer(RequestView(name, SERVICE, 0.0, tenant=name), CONFIG, 0.0)
    asked = []
    queue.release(0.0, lambda each: asked.append(each.tenant), SERVICE, lambda each, _: each.tenant == "second")
    assert asked == ["first"]


def test_a_tenant_that_is_far_ahead_by_tokens_passes_no_more():
    world = flooded()
    passed = 0
    while passed < 100:
        world.arrive("steady", tokens=10_000)
        if world.in_flight()["steady"] == 0:
            break
        passed += 1
        # It ends at once, so the tenant stays within its share of slots.
        world.end_all_of("steady")
    assert 3 <= passed <= service_queue.MOST_AHEAD / 10_000 + 2


def test_slots_kept_free_follow_what_the_requests_of_others_needed():
    world = flooded(slots=64, requests=500)

    def bursts(count, of):
        for _ in range(count):
            for _ in range(of):
                world.arrive("steady")
            for _ in range(of):
                world.end()
            world.end_all_of("steady")

    bursts(20, of=10)
    assert world.slots - len(world.running) in (9, 10, 11)
    for _ in range(4):
        world.arrive("steady")
    assert world.slots - len(world.running) in (5, 6, 7)
    world.end_all_of("steady")
    bursts(140, of=1)
    assert world.slots - len(world.running) == 64 * SPARE_SLOTS


@given(st.integers(1, 512), st.integers(0, 600))
def test_a_tenant_above_its_share_leaves_at_most_a_quarter_free_or_one_slot_and_at_least_a_sixteenth(slots, claimed):
    free = slots - most_outstanding(slots, above_share=True, claimed=claimed)
    least = min(slots - 1, max(1, int(slots * SPARE_SLOTS)))
    assert free == max(least, min(claimed, int(slots * MOST_FREE)))
    assert min(slots - 1, max(1, slots // 16)) <= free <= max(1, slots // 4)
    assert most_outstanding(slots, claimed=claimed) == slots + max(1, int(slots * SPARE_SLOTS))


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.sampled_from("abc"), st.integers(1, 5000), st.sampled_from(["default", "x"])),
        st.tuples(st.just("burst"), st.sampled_from("abc"), st.integers(1, 30)),
        st.tuples(st.just("end"), st.integers(1, 10)),
        st.tuples(st.just("pass"), st.floats(0, 70)),
    ),
    max_size=60,
)


@given(st.integers(1, 40), _STEPS)
def test_while_requests_wait_no_more_slots_are_idle_than_the_bound_and_all_start_in_the_end(slots, steps):
    most_idle = max(1, int(slots * MOST_FREE))
    world = World(slots)
    for step in steps:
        match step:
            case ("arrive", tenant, tokens, service_class):
                world.arrive(tenant, tokens, service_class)
            case ("burst", tenant, count):
                for _ in range(count):
                    world.arrive(tenant)
            case ("end", count):
                for _ in range(count):
                    world.end()
            case ("pass", seconds):
                world.now += seconds
                world.release()
        assert len(world.running) <= slots + max(1, int(slots * SPARE_SLOTS))
        if not world.waiting:
            continue
        idle = slots - len(world.running)
        assert idle <= (most_idle if slots > 1 else 0)
    for _ in range(world.count):
        world.end()
    assert not world.waiting
    assert sorted(int(each.request_id) for each in world.started) == list(range(1, world.count + 1))


@settings(max_examples=25, deadline=None)
@given(
    st.integers(2, 8),
    st.lists(st.integers(1000, 4000), min_size=2, max_size=4),
    st.lists(st.integers(0, 3), max_size=40),
)
def test_no_tenant_starves_beside_others_whose_requests_always_wait(slots, sizes, extra):
    """Each starts once while tokens are served that lift all others past the most that it can be ahead."""
    with mock.patch.object(service_queue, "MOST_AHEAD", 4000.0):
        _all_start_again_and_again(slots, sizes, extra)


def _all_start_again_and_again(slots, sizes, extra):
    world = World(slots)
    for tenant, tokens in enumerate(sizes):
        for _ in range(slots + 3):
            world.arrive(str(tenant), tokens)
    for tenant in extra:
        world.arrive(str(tenant % len(sizes)), 1)
    ahead = service_queue.MOST_AHEAD + (slots + 3) * (max(sizes) + 2)
    longest = int(len(sizes) * ahead / min(sizes)) + 2 * slots
    since = dict.fromkeys(map(str, range(len(sizes))), 0)
    seen = len(world.started)
    for turn in range(2 * longest):
        world.end()
        for each in world.started[seen:]:
            since[each.tenant] = turn
            world.arrive(each.tenant, sizes[int(each.tenant)])
        seen = len(world.started)
        assert turn - min(since.values()) <= longest


def test_alone_a_tenant_uses_all_slots_and_a_tenant_without_others_for_a_minute_again():
    world = flooded()
    assert len(world.running) == 7
    world.now += 61.0
    world.release()
    assert len(world.running) == 9
