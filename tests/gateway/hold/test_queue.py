"""The hold queue: its bounds, its order, and the next request."""

from collections import Counter
from dataclasses import replace
from math import e, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.discovery.service_config import read_service
from inflight_gateway.hold.bounds import TENANT_FACTOR
from inflight_gateway.hold.queue import RECHECK_S, HoldQueue
from inflight_gateway.hold.service_queue import MARGIN_SHARE
from inflight_gateway.link.wire import Ask
from inflight_gateway.request.body import Body
from inflight_gateway.requests.view import view
from inflight_gateway.types import Endpoint, HoldBounds, Pick, RequestView, ServiceClass, ServiceConfig, TenantConfig
from inflight_policies.deadline import LATE_SHARE, OVERDUE_SHARE
from inflight_policies.priority import PRIORITY_AGING_S

SERVICE = ServiceKey("default", "chat")
CONFIG = ServiceConfig(key=SERVICE, uid="u", model="m")
STARTS_WHILE_OVERDUE = round(1 / OVERDUE_SHARE)
PICK = Pick((Endpoint("10.0.0.1:8000", "pod"),), "only")


def request(name, arrived=0.0, *, service=SERVICE, **fields):
    fields.setdefault("prompt_tokens", 100)
    return RequestView(request_id=str(name), service=service, arrived=arrived, **fields)


def anything(_):
    return PICK


def nothing(_):
    return None


def at_most(count):
    """Lets so many start."""
    left = iter(range(count))
    return lambda _: PICK if next(left, None) is not None else None


def ids(released):
    return [each.request_id for each, _ in released]


def filled(*requests, config=CONFIG, now=None):
    """Returns a queue to which each request came on its arrival, or all at `now`."""
    queue = HoldQueue()
    for each in requests:
        assert queue.offer(each, config, each.arrived if now is None else now) is None
    return queue


def test_without_deadlines_classes_and_tenants_the_first_to_arrive_is_the_first_to_start():
    queue = filled(*(request(number, arrived=number) for number in range(5)))
    assert ids(queue.release(9.0, at_most(2))) == ["0", "1"]
    assert ids(queue.release(9.0, nothing)) == []
    assert ids(queue.release(9.0, anything)) == ["2", "3", "4"]
    assert len(queue) == 0


@pytest.mark.parametrize(
    ("spec", "order"),
    [
        ({}, ["0", "1", "2"]),
        ({"slo": {"ttftP95": "1s"}, "engine": {"scheduling": {"policy": "fcfs"}}}, ["0", "1", "2"]),
        ({"slo": {"ttftP95": "1s"}}, ["2", "0", "1"]),
    ],
)
def test_only_a_target_by_which_engines_order_lets_a_request_pass_those_that_came_before_it(spec, order):
    manifest = {"metadata": {"namespace": "default", "name": "chat", "uid": "u"}}
    config, _ = read_service({**manifest, "spec": {"gateway": {"enabled": True}, **spec}})
    queue = HoldQueue()
    for number, arrived in enumerate((0.0, 4.0, 8.0)):
        ask = Ask(str(number), 1, SERVICE, body=Body(prompt_tokens=100))
        assert queue.offer(view(ask, config, arrived), config, arrived) is None
    assert ids(queue.release(8.0, anything)) == order


def test_no_request_overtakes_one_that_cannot_start():
    queue = filled(request("large"), request("small", arrived=1.0))
    asked = []
    queue.release(2.0, lambda each: asked.append(each.request_id))
    assert asked == ["large"]


def test_a_head_that_cannot_start_is_tried_again_after_a_change_or_a_moment_or_if_it_is_another():
    queue, asked = filled(request("head", tenant="a")), []

    def tried(now, **fields):
        asked.clear()
        queue.release(now, lambda each: asked.append(each.request_id), SERVICE, lambda *_: False, **fields)
        return asked

    assert tried(1.0) == ["head"]
    for number in range(5):
        assert queue.offer(request(number, arrived=1.0, tenant="a"), CONFIG, 1.0) is None
        assert tried(1.0, changed=False) == []
    assert tried(1.0) == ["head"]
    assert tried(1.0 + RECHECK_S / 2, changed=False) == []
    assert tried(1.0 + RECHECK_S, changed=False) == ["head"]
    queue.remove("head")
    assert tried(1.0 + RECHECK_S, changed=False) == ["0"]


def test_a_request_of_another_tenant_may_overtake_a_head_that_was_tried_before():
    queue = filled(request("head", tenant="flood"))
    assert queue.release(1.0, nothing) == []
    assert queue.offer(request("next", arrived=1.0, tenant="other"), CONFIG, 1.0) is None

    def only_other(each):
        return PICK if each.tenant == "other" else None

    released = queue.release(1.0, only_other, SERVICE, lambda each, _: each.tenant == "flood", changed=False)
    assert ids(released) == ["next"]


def test_a_service_that_cannot_start_anything_holds_up_no_other():
    other = ServiceKey("default", "other")
    queue = filled(request("a"), request("b", service=other))
    assert ids(queue.release(1.0, lambda each: PICK if each.service == other else None)) == ["b"]
    assert ids(queue.release(1.0, anything, ServiceKey("default", "unknown"))) == []
    assert ids(queue.release(1.0, anything, SERVICE)) == ["a"]


def test_a_smaller_priority_counts_as_an_earlier_arrival():
    late_but_first = request("first", arrived=5.0, priority=-1)
    queue = filled(request("0", arrived=0.0), request("4", arrived=4.0), late_but_first)
    assert ids(queue.release(5.0, anything)) == ["first", "0", "4"]
    aged = filled(request("old", arrived=0.0), request("new", arrived=PRIORITY_AGING_S + 1, priority=-1))
    assert ids(aged.release(20.0, anything)) == ["old", "new"]


def test_a_step_of_priority_counts_as_long_as_the_service_says():
    for aging_s, order in ((2.0, ["old", "new"]), (4.0, ["new", "old"])):
        config = replace(CONFIG, priority_aging_s=aging_s)
        queue = filled(request("old"), request("new", arrived=3.0, priority=-1), config=config)
        assert ids(queue.release(3.0, anything)) == order


def test_a_request_whose_first_token_is_overdue_lets_those_in_time_go_first():
    queue = filled(request("late", arrived=0.0, deadline=1.0), request("in time", arrived=2.0, deadline=9.0))
    assert ids(queue.release(2.0, anything)) == ["in time", "late"]


def test_a_request_is_late_when_the_engines_queue_and_its_own_prefill_take_it_past_its_deadline():
    """Predicted: 1 s of queue and 1 s of prefill for each start, of 100 tokens."""
    slow = replace(PICK, predicted_ttft_s=2.0, prefill_s=1.0)
    queue = filled(*(request(number) for number in range(100)))
    queue.release(0.0, lambda _: slow)
    assert queue.offer(request("tight", arrived=0.0, deadline=1.9), CONFIG, 0.0) is None
    assert queue.offer(request("short", arrived=1.0, prompt_tokens=10, deadline=1.9), CONFIG, 0.0) is None
    assert queue.offer(request("easy", arrived=2.0, deadline=9.0), CONFIG, 0.0) is None
    assert ids(queue.release(0.0, anything)) == ["short", "easy", "tight"]


def test_of_equal_prompts_one_start_in_twenty_goes_to_the_oldest_late_request():
    late = [request(f"late {number}", arrived=number / 10, deadline=1.0) for number in range(3)]
    others = [request(number, arrived=2.0 + number / 100) for number in range(100)]
    queue = filled(*late, *others)
    started = ids(queue.release(5.0, anything))
    picks = round(1 / LATE_SHARE)
    assert [started.index(f"late {number}") for number in range(3)] == [picks * turn - 1 for turn in range(1, 4)]


def test_a_late_request_starts_after_nineteen_times_as_many_prompt_tokens_of_others():
    late = [
        request("long", 0.0, prompt_tokens=400, deadline=1.0),
        request("short", 0.1, prompt_tokens=10, deadline=1.0),
    ]
    others = [request(number, arrived=2.0, prompt_tokens=100, deadline=99.0) for number in range(80)]
    started = ids(filled(*late, *others).release(5.0, anything))
    assert [started.index("long"), started.index("short")] == [4 * 19, 4 * 19 + 1 + 2]


def test_one_start_in_five_goes_to_late_requests_once_the_oldest_has_waited_for_half_of_the_longest_wait():
    config = replace(CONFIG, hold=HoldBounds(max_wait_s=60.0))
    late = [request(f"late {number}", deadline=0.5) for number in range(2)]
    others = [request(number, arrived=20.0, deadline=99.0) for number in range(12)]
    queue = filled(*late, *others, config=config)
    assert ids(queue.release(29.9, at_most(3))) == ["0", "1", "2"]
    assert ids(queue.release(30.0, at_most(7))) == ["3", "late 0", "4", "5", "6", "7", "late 1"]


def test_a_late_request_out_of_turn_keeps_the_replicas_free_that_the_requests_in_time_need():
    queue = filled(
        request("late", deadline=0.5), *(request(number, arrived=2.0, deadline=99.0) for number in range(15))
    )
    half_a_second = replace(PICK, predicted_ttft_s=0.5, prefill_s=0.5)
    starts = iter(range(13))
    queue.release(2.0, lambda _: half_a_second if next(starts, None) is not None else None)
    assert queue.kept_free("late", 2.0) == 0.0  # One in time waits.
    queue.release(2.0, lambda each: half_a_second if each.request_id != "late" else None)
    load = 15 * 0.5 / 10.0
    assert queue.kept_free("late", 2.0) == pytest.approx(load + 2 * load**0.5)
    assert queue.kept_free("late", 12.0) == pytest.approx(load / e + 2 * (load / e) ** 0.5)


def test_a_late_request_keeps_no_replica_free_for_requests_without_a_target():
    config = replace(CONFIG, classes=(ServiceClass("chat", ttft_s=1.0), ServiceClass("batch")))
    queue = filled(*(request(number, 2.0, service_class="batch") for number in range(9)), config=config)
    queue.release(2.0, lambda _: replace(PICK, predicted_ttft_s=5.0, prefill_s=5.0))
    assert queue.offer(request("late", 2.0, service_class="chat", deadline=0.5), config, 2.0) is None
    queue.release(2.0, nothing)
    assert queue.kept_free("late", 2.0) == 0.0


def late_beside_another_tenant(starts, now=2.0, tokens=100):
    """Returns a queue with a late request of tenant a, after so many starts in time of tenant b while it waited."""
    others = [request(number, now, tenant="b", deadline=99.0) for number in range(starts)]
    queue = filled(request("late", tenant="a", deadline=0.5, prompt_tokens=tokens), *others)
    queue.release(now, nothing)
    queue.served(request("", tenant="a"), 10**6)  # so that b is next
    released = queue.release(now, lambda each: replace(PICK, prefill_s=1.0) if each.tenant == "b" else None)
    assert len(released) == starts
    return queue


def test_late_requests_of_other_tenants_do_not_count_as_requests_in_time():
    queue = late_beside_another_tenant(3)
    assert queue.offer(request("as late", 2.0, tenant="c", deadline=1.0), CONFIG, 2.0) is None
    assert queue.kept_free("late", 2.0) > 0.0
    assert queue.offer(request("in time", 2.0, tenant="d", deadline=3.0), CONFIG, 2.0) is None
    assert queue.kept_free("late", 2.0) == 0.0
    assert queue.kept_free("late", 3.5) > 0.0


@pytest.mark.parametrize(
    ("tokens", "now", "turn"),
    [(100, 2.0, 19), (200, 2.0, 38), (100, 30.0, 4), (9000, 30.0, 4)],
    ids=["late", "late and twice as long", "overdue", "overdue and long"],
)
def test_the_share_of_late_requests_comes_by_the_starts_of_all_tenants(tokens, now, turn):
    assert late_beside_another_tenant(turn - 1, now, tokens).kept_free("late", now) > 0.0
    assert late_beside_another_tenant(turn, now, tokens).kept_free("late", now) == 0.0


def test_a_late_request_in_its_turn_or_of_a_service_without_others_keeps_no_replica_free():
    others = [request(number, arrived=2.0, deadline=99.0) for number in range(round(1 / LATE_SHARE) - 1)]
    queue = filled(request("late", deadline=0.5), *others)
    queue.release(2.0, lambda each: replace(PICK, prefill_s=1.0) if each.request_id != "late" else None)
    assert queue.kept_free("late", 2.0) == 0.0
    alone = filled(request("late", deadline=0.5))
    alone.release(2.0, nothing)
    assert alone.kept_free("late", 2.0) == 0.0


@given(
    st.lists(st.tuples(st.floats(0, 2), st.floats(0, 5), st.sampled_from(("a", "b")), st.integers(0, 3)), max_size=40)
)
def test_requests_in_time_are_counted_through_starts_removals_and_lateness(events):
    """(seconds since the one before, slack of the deadline, tenant, starts after it)"""
    queue, now = HoldQueue(), 0.0
    for number, (gap, slack, tenant, starts) in enumerate(events):
        now += gap
        assert queue.offer(request(number, now, tenant=tenant, deadline=now + slack), CONFIG, now) is None
        queue.release(now, at_most(starts))
        if number % 5 == 0:
            queue.remove(str(number))
        if len(queue):
            queue.kept_free(next(iter(queue._by_id)), now)
            in_time = [one for one in queue._by_id.values() if one.request.deadline >= now]
            assert len(queue._services[SERVICE]._in_time) == len(in_time)


def test_a_margin_of_its_classes_target_is_kept_before_a_deadline():
    config = replace(CONFIG, classes=(ServiceClass("chat", ttft_s=1.0),))
    queue = filled(request("first", service_class="chat", deadline=1.0), config=config)
    assert queue.offer(request("next", 0.5, service_class="chat", deadline=1.5), config, 0.5) is None
    assert ids(queue.release(1.0 - MARGIN_SHARE + 0.01, anything)) == ["next", "first"]


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 9), st.integers(0, 2), st.booleans()), max_size=60))
def test_a_late_request_starts_within_five_starts_for_each_before_it_from_half_of_the_longest_wait_on(arrivals):
    """(seconds since the one before, until it is late; starts after it; another gateway pod had it before)"""
    config = replace(CONFIG, hold=HoldBounds(max_wait_s=20.0), classes=(ServiceClass("chat", priority=3),))
    queue, now, waiting, starts_left = HoldQueue(), 0.0, [], {}
    for number, (gap, slack, starts, moved) in enumerate(arrivals):
        now += gap
        since = now - slack if moved else now
        made = request(number, since, priority=3, service_class="chat", deadline=since + slack)
        assert queue.offer(made, config, now, since=since, admitted=moved) is None
        waiting.append(made)
        waiting.sort(key=lambda each: each.arrived)
        for each in waiting[waiting.index(made) + 1 :]:
            # One that came from another pod goes before it.
            starts_left[each.request_id] = starts_left.get(each.request_id, inf) + STARTS_WHILE_OVERDUE
        for place, each in enumerate(waiting):
            if each.deadline < now and each.arrived <= now - 10.0:
                least = (place + 1) * STARTS_WHILE_OVERDUE
                starts_left[each.request_id] = min(least, starts_left.get(each.request_id, inf))
        for name in ids(queue.release(now, at_most(starts))):
            waiting = [each for each in waiting if each.request_id != name]
            starts_left.pop(name, None)
            starts_left = {each: left - 1 for each, left in starts_left.items()}
            assert min(starts_left.values(), default=1) > 0


def test_classes_that_always_wait_get_tokens_by_their_weights():
    config = replace(CONFIG, classes=(ServiceClass("gold", weight=3.0), ServiceClass("bronze", weight=1.0)))
    queue = HoldQueue()
    for number in range(400):
        name = "gold" if number % 2 else "bronze"
        assert queue.offer(request(number, service_class=name), config, 0.0) is None
    started = Counter("gold" if int(name) % 2 else "bronze" for name in ids(queue.release(1.0, at_most(200))))
    assert started["gold"] == pytest.approx(150, abs=3)


def test_tenants_that_always_wait_get_tokens_by_their_weights_however_many_requests_each_sends():
    config = replace(CONFIG, tenants=(TenantConfig("acme", weight=2.0),))
    queue = HoldQueue()
    for number in range(600):
        queue.offer(request(f"flood {number}", tenant="flood", prompt_tokens=1000), config, 0.0)
    for number in range(100):
        queue.offer(request(f"acme {number}", tenant="acme", prompt_tokens=100), config, 0.0)
    started = ids(queue.release(1.0, at_most(60)))
    tokens = {
        "flood": sum(1000 for name in started if name.startswith("flood")),
        "acme": sum(100 for name in started if name.startswith("acme")),
    }
    assert tokens["acme"] == pytest.approx(2 * tokens["flood"], abs=2 * 1000)


def test_a_tenant_that_comes_now_and_then_is_next_beside_one_that_floods():
    queue = filled(*(request(f"flood {number}", tenant="flood") for number in range(100)))
    queue.release(0.0, at_most(10))
    for turn in range(5):
        queue.offer(request(f"steady {turn}", tenant="steady", prompt_tokens=300), CONFIG, 1.0 + turn)
        assert ids(queue.release(1.0 + turn, at_most(1))) == [f"steady {turn}"]
        assert all(name.startswith("flood") for name in ids(queue.release(1.0 + turn, at_most(10))))


def test_of_tenants_that_have_just_come_the_first_is_next():
    queue = filled(*(request(f"flood {number}", tenant="flood") for number in range(10)))
    queue.release(0.0, at_most(1))
    for name in ("x", "y", "z"):
        queue.offer(request(name, tenant=name), CONFIG, 1.0)
    assert ids(queue.release(1.0, at_most(3))) == ["x", "y", "z"]


def test_output_tokens_count_twice_and_as_soon_as_they_are_reported():
    talker = [request(f"talker {number}", tenant="talker", prompt_tokens=100) for number in range(20)]
    reader = [request(f"reader {number}", tenant="reader", prompt_tokens=100) for number in range(20)]
    queue = filled(*talker, *reader)
    first = ids(queue.release(1.0, at_most(1)))
    assert first == ["talker 0"]
    queue.served(talker[0], 500)
    assert all(name.startswith("reader") for name in ids(queue.release(1.0, at_most(10))))


def test_cached_prompt_tokens_are_not_charged():
    """Two tenants with equal prompts, one of which is found in prefix caches."""
    queue = HoldQueue()
    for number in range(50):
        queue.offer(request(f"cached {number}", tenant="cached", prompt_tokens=1000), CONFIG, 0.0)
        queue.offer(request(f"new {number}", tenant="new", prompt_tokens=1000), CONFIG, 0.0)
    cached = replace(PICK, cached_tokens=900)
    limit = iter(range(33))

    def can_start(each):
        if next(limit, None) is None:
            return None
        return cached if each.tenant == "cached" else PICK

    started = Counter(name.split()[0] for name in ids(queue.release(1.0, can_start)))
    assert started["cached"] == pytest.approx(30, abs=1)


def test_a_tenant_that_comes_back_has_saved_nothing_up():
    queue = HoldQueue()
    queue.offer(request("idle first", tenant="idle"), CONFIG, 0.0)
    queue.release(0.0, anything)
    for number in range(200):
        queue.offer(request(f"busy {number}", tenant="busy"), CONFIG, 1.0)
        if number < 100:
            queue.release(1.0, anything)
    for number in range(100):
        queue.offer(request(f"idle {number}", tenant="idle"), CONFIG, 2.0)
    started = Counter(name.split()[0] for name in ids(queue.release(2.0, at_most(50))))
    assert started["busy"] == pytest.approx(25, abs=2)


@pytest.mark.parametrize(
    ("bounds", "fields"),
    [
        (HoldBounds(max_requests=3), {}),
        (HoldBounds(max_bytes=350), {"body_bytes": 100}),
    ],
)
def test_beyond_a_bound_the_answer_is_503_with_retry_after(bounds, fields):
    config = replace(CONFIG, hold=bounds)
    queue = filled(*(request(number, **fields) for number in range(3)), config=config)
    refusal = queue.offer(request("more", **fields), config, 7.2)
    assert (refusal.status, refusal.code) == (503, "queue_full")
    assert dict(refusal.headers)["retry-after"] == "8"
    assert "default/chat" in refusal.message
    assert "spec.gateway.hold.max" in refusal.message
    assert len(queue) == 3
    queue.release(8.0, at_most(1))
    assert queue.offer(request("more", **fields), config, 8.0) is None


def test_bounds_are_of_each_service():
    config = replace(CONFIG, hold=HoldBounds(max_requests=1))
    queue = filled(request("a"), config=config)
    other = ServiceKey("default", "other")
    assert queue.offer(request("b", service=other), replace(config, key=other), 0.0) is None


@pytest.mark.parametrize("floods", [1, 2, 5])
def test_tenants_that_flood_leave_room_for_another(floods):
    config = replace(CONFIG, hold=HoldBounds(max_requests=1000, max_bytes=10**9))
    queue = HoldQueue()
    for number in range(2000):
        for flood in range(floods):
            queue.offer(request(f"{flood} {number}", tenant=f"flood {flood}", body_bytes=10), config, 0.0)
    free = 1000 - len(queue)
    assert free >= 1000 // (1 + TENANT_FACTOR * floods)
    refused = sum(queue.offer(request(f"b {n}", tenant="b", body_bytes=10), config, 0.0) is not None for n in range(9))
    assert refused == 0


def test_a_flood_of_bytes_leaves_room_for_another_tenant():
    config = replace(CONFIG, hold=HoldBounds(max_requests=10**6, max_bytes=10_000))
    queue = HoldQueue()
    for number in range(200):
        queue.offer(request(number, tenant="flood", body_bytes=100), config, 0.0)
    assert queue.offer(request("b", tenant="b", body_bytes=500), config, 0.0) is None


def test_requests_without_tenants_may_use_the_whole_queue():
    config = replace(CONFIG, hold=HoldBounds(max_requests=100))
    filled(*(request(number) for number in range(100)), config=config)


def test_a_request_expires_after_the_longest_wait_and_not_before():
    config = replace(CONFIG, hold=HoldBounds(max_wait_s=60.0))
    queue = filled(request("a"), config=config, now=0.0)
    queue.offer(request("b"), config, 10.0)
    assert queue.expire(59.9) == []
    assert [each.request_id for each in queue.expire(60.0)] == ["a"]
    assert ids(queue.release(60.0, anything)) == ["b"]
    assert queue.expire(1000.0) == []


def test_a_request_that_another_gateway_pod_admitted_keeps_its_place_and_its_longest_wait_and_is_not_refused():
    config = replace(CONFIG, hold=HoldBounds(max_requests=2, max_bytes=10, max_wait_s=60.0))
    queue = filled(request("a", tenant="t"), request("b", arrived=5.0, tenant="t"), config=config)
    moved = request("moved", tenant="t", body_bytes=100)
    assert queue.offer(moved, config, 50.0).code == "queue_full"
    assert queue.offer(moved, config, 50.0, since=-5.0, admitted=True) is None
    assert queue.offer(request("later", tenant="t"), config, 50.0, since=2.0, admitted=True) is None
    assert queue.waiting(SERVICE, 50.0).oldest_s == 55.0
    assert [each.request_id for each in queue.expire(55.0)] == ["moved"]
    assert ids(queue.release(55.0, anything)) == ["a", "later", "b"]


def test_a_request_whose_client_left_is_not_started():
    queue = filled(request("a"), request("b"))
    assert queue.remove("a")
    assert not queue.remove("a")
    assert ids(queue.release(0.0, anything)) == ["b"]


def test_an_id_that_waits_already_is_refused():
    queue = filled(request("a"))
    assert queue.offer(request("a"), CONFIG, 0.0).status == 400
    assert len(queue) == 1


def test_what_waits_is_counted_by_service():
    queue = filled(request("a", body_bytes=5), request("b", body_bytes=7), now=3.0)
    waiting = queue.waiting(SERVICE, 10.0)
    assert (waiting.requests, waiting.prompt_tokens, waiting.body_bytes, waiting.oldest_s) == (2, 200, 12, 7.0)
    queue.release(10.0, anything)
    assert queue.waiting(SERVICE, 10.0).requests == 0


_OPERATIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("offer"),
            st.integers(0, 2),
            st.integers(0, 2),
            st.integers(-2, 2),
            st.sampled_from([0.5, 5.0, float("inf")]),
            st.integers(0, 40),
        ),
        st.tuples(st.just("release"), st.integers(0, 4)),
        st.tuples(st.just("expire")),
        st.tuples(st.just("remove"), st.integers(0, 60)),
        st.tuples(st.just("pass"), st.floats(0, 3)),
        st.tuples(st.just("served"), st.integers(0, 60), st.integers(0, 1000)),
    ),
    max_size=80,
)


@given(_OPERATIONS)
def test_nothing_is_lost_none_starts_twice_bounds_hold_and_tenants_keep_their_order(operations):
    bounds = HoldBounds(max_requests=12, max_bytes=200, max_wait_s=4.0)
    config = replace(CONFIG, hold=bounds, classes=(ServiceClass("x", 2.0), ServiceClass("y")))
    queue, now, offered, left = HoldQueue(), 0.0, {}, Counter()
    waiting = {}
    """Begin of the wait of each request."""
    for number, operation in enumerate(operations):
        match operation:
            case ("offer", tenant, kind, priority, slack, size):
                made = request(
                    number,
                    now,
                    tenant=("", "a", "b")[tenant],
                    service_class=("default", "x", "y")[kind],
                    priority=priority,
                    deadline=now + slack,
                    body_bytes=size,
                )
                offered[str(number)] = made
                if queue.offer(made, config, now) is None:
                    waiting[str(number)] = now
            case ("release", count):
                for started in ids(queue.release(now, at_most(count))):
                    key = _key(offered[started])
                    same = [offered[name] for name in waiting if _lane(offered[name]) == _lane(offered[started])]
                    # Within a tenant and a class nothing starts before one that is ahead and as timely.
                    # (`PICK` predicts nothing, so nothing comes off a deadline.)
                    ahead = [each for each in same if _key(each) < key and _in_time(each, now)]
                    assert not ahead or not _in_time(offered[started], now)
                    del waiting[started]
                    left[started] += 1
            case ("expire",):
                for each in queue.expire(now):
                    assert now - waiting.pop(each.request_id) >= bounds.max_wait_s
                    left[each.request_id] += 1
                assert all(now - since < bounds.max_wait_s for since in waiting.values())
            case ("remove", place):
                name = str(place)
                assert queue.remove(name) == (name in waiting)
                if waiting.pop(name, None) is not None:
                    left[name] += 1
            case ("pass", seconds):
                now += seconds
            case ("served", place, tokens):
                if str(place) in offered:
                    queue.served(offered[str(place)], tokens)
        assert len(queue) == len(waiting) <= bounds.max_requests
        counted = queue.waiting(SERVICE, now)
        assert counted.requests == len(waiting)
        assert counted.body_bytes == sum(offered[name].body_bytes for name in waiting) <= bounds.max_bytes
        assert counted.oldest_s == (now - min(waiting.values()) if waiting else 0.0)
    rest = ids(queue.release(now, anything))
    assert sorted(rest) == sorted(waiting)
    assert all(count == 1 for count in left.values())


def _key(each):
    return each.arrived + each.priority * PRIORITY_AGING_S, int(each.request_id)


def _in_time(each, now):
    return each.deadline >= now


def _lane(each):
    return each.service_class, each.tenant


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5000)), min_size=1, max_size=60),
    st.integers(1, 5000),
)
def test_a_waiting_request_starts_whatever_others_send(others, prompt_tokens):
    """Nothing starves: with a start for each arrival, a request of a tenant of its own waits for no more than what
    lifts the others' counters over its own."""
    queue = HoldQueue()
    assert queue.offer(request("mine", tenant="mine", prompt_tokens=prompt_tokens), CONFIG, 0.0) is None
    for number, (tenant, tokens) in enumerate(others * 3):
        queue.offer(request(number, tenant=f"t{tenant}", prompt_tokens=tokens), CONFIG, 0.0)
    # Each of five others may start once before it; those with the same counter started to wait later.
    assert "mine" in ids(queue.release(1.0, at_most(6)))


def test_counters_of_idle_tenants_are_forgotten():
    queue = HoldQueue()
    for number in range(40_000):
        queue.offer(request(number, tenant=f"tenant {number}"), CONFIG, 0.0)
        queue.release(0.0, anything)
    counters = queue._services[SERVICE]._classes["default"].counters
    assert len(counters._counters) <= 16_384 + 1
    assert len(queue._by_expiry) < 1000
