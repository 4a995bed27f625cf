"""Several steady steps taken in at once leave what as many single steps of the engine's scheduler leave."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_engine.request import FinishReason, Request, SamplingParams, Scheduling
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.scheduler import Scheduler
from inflight_settings.limits import Limits
from inflight_settings.scheduling import ServiceClass
from inflight_simulator.arrivals import OUTPUT_TOKEN
from inflight_simulator.fleet.replicas.scheduler import FleetScheduler

CLASSES = (ServiceClass("a", weight=3.0), ServiceClass("b"))


def config(**fields):
    small = {"capacity": Limits(6, 24), "num_blocks": 24, "block_size": 4, "max_model_len": 90}
    return SchedulerConfig(**{**small, "kv_headroom": 0.0, "policy": "fcfs", "ttft_target": 20.0, **fields})


def request(number, prompt, output, classes=("default",)):
    tokens = np.arange(prompt, dtype=np.int32) + 100 * number
    return Request(
        number,
        tokens,
        SamplingParams(max_tokens=output),
        arrival_time=float(number),
        scheduling=Scheduling(classes[number % len(classes)], number % 2, f"t{number % 3}"),
    )


def single_step(scheduler):
    plan = scheduler.schedule(now=float(scheduler.num_steps))
    if plan is None:
        return None, []
    ended = scheduler.update(plan, np.full(len(plan.sampled_slots), OUTPUT_TOKEN, np.int32))
    return plan, [each.request_id for each in ended]


def many_steps(scheduler, count):
    """Advances through `advance_many` where that is possible; returns the plans, and the requests that ended."""
    plans, ended = [], []
    while count:
        steady = min(count, scheduler.steady_steps())
        if steady:
            ended += [each.request_id for each in scheduler.advance_many(steady)]
            plans += [None] * steady
            count -= steady
            continue
        plan, now_ended = single_step(scheduler)
        if plan is None:
            break
        plans.append(plan)
        ended += now_ended
        count -= 1
    return plans, ended


def same_value(one, other):
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same_value, one, other))
    if hasattr(one, "__struct_fields__"):
        return all(same_value(getattr(one, name), getattr(other, name)) for name in one.__struct_fields__)
    return one == other


def without_ids(plan):
    """Blocks are counted only."""

    def blank(each):
        return msgspec.structs.replace(each, block_ids=np.zeros(len(each.block_ids), np.int32))

    growth = plan.growth and blank(plan.growth)
    return msgspec.structs.replace(plan, starts=tuple(map(blank, plan.starts)), growth=growth)


def numbers(scheduler, *, ids):
    table, decodes = scheduler.running.table, scheduler.running.decodes
    decodes.settle()
    requests = [each and (each.request_id, each.output_token_ids.tolist()) for each in table.requests]
    tables = [table.table(slot).tolist() if ids else int(table.num_blocks[slot]) for slot in range(table.num_slots)]
    return (
        scheduler.num_running,
        scheduler.num_waiting,
        scheduler.num_uncomputed_tokens,
        scheduler.preemptor.num_preemptions,
        scheduler.kv_usage,
        decodes.clock,
        len(decodes.slots),
        scheduler.num_attended_tokens,
        decodes.slots.tolist(),
        table.order.tolist(),
        requests,
        [one if requests[slot] else None for slot, one in enumerate(tables)],
        scheduler.num_steps,
        scheduler.changed,
        scheduler.offload.num_stored,
        scheduler.offload.num_loaded,
        scheduler.offload.usage(),
        list(scheduler.running.releases),
    )


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 40), st.integers(1, 45)),
        st.tuples(st.just("steps"), st.integers(1, 40)),
        st.tuples(st.just("cancel"), st.integers(0, 8)),
        st.tuples(st.just("limits"), st.integers(1, 6), st.integers(1, 24)),
    ),
    max_size=30,
)


@settings(max_examples=400, deadline=None)
@given(
    ACTIONS,
    st.sampled_from(["fcfs", "fair", "priority", "sjf", "deadline"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 0.2]),
    st.sampled_from([0, 3, 40]),
)
def test_many_steps_at_once_leave_the_state_of_single_steps(
    actions, policy, two_classes, prefix_caching, headroom, host_blocks
):
    fields = {"policy": policy, "prefix_caching": prefix_caching, "kv_headroom": headroom}
    fields |= {"num_host_blocks": host_blocks, "preemption": "swap"}
    names = ("default",)
    if two_classes:
        fields["classes"], names = CLASSES, ("a", "b")
    single, many = Scheduler(config(**fields)), FleetScheduler(config(**fields))
    made = 0
    for action in [*actions, ("steps", 5000)]:
        if action[0] == "add":
            for each in (single, many):
                each.add(request(made, *action[1:], names))
            made += 1
        elif action[0] == "cancel":
            assert single.cancel(action[1], FinishReason.ABORT) == many.cancel(action[1], FinishReason.ABORT)
        elif action[0] == "limits":
            single.limits = many.limits = Limits(*action[1:])
        else:
            plans, ended = many_steps(many, action[1])
            singles = [single_step(single) for _ in plans]
            assert ended == [number for _, numbers in singles for number in numbers]
            for plan, (other, _) in zip(plans, singles, strict=True):
                if plan is None:
                    assert not other.prefills
                    assert not other.starts
                    assert not other.preemptions
                    assert other.stores is None
                else:
                    assert same_value(plan, other if prefix_caching else without_ids(other))
        assert numbers(many, ids=prefix_caching) == numbers(single, ids=prefix_caching)
    assert many.num_running == many.num_waiting == 0


def test_a_steady_batch_is_taken_in_up_to_its_first_end():
    scheduler = FleetScheduler(config())
    scheduler.add(request(0, 5, 9))
    scheduler.add(request(1, 3, 12))
    single_step(scheduler)
    assert scheduler.steady_steps() == 8
    assert [each.request_id for each in scheduler.advance_many(8)] == [0]
    assert scheduler.steady_steps() == 3


def test_steady_steps_stop_before_blocks_run_out():
    scheduler = FleetScheduler(config(num_blocks=6))
    scheduler.add(request(0, 8, 16))
    scheduler.add(request(1, 8, 16))
    single_step(scheduler)
    steps = scheduler.steady_steps()
    assert steps == 4  # Both took a third block with the first of them, the last two that there are.
    scheduler.advance_many(steps)
    assert scheduler.steady_steps() == 0
    plan, _ = single_step(scheduler)
    assert len(plan.preemptions) == 1


@pytest.mark.parametrize("waits", [True, False])
def test_nothing_is_steady_while_a_prompt_is_to_be_computed(waits):
    scheduler = FleetScheduler(config())
    scheduler.add(request(0, 30, 4))
    if not waits:
        scheduler.update(scheduler.schedule(), np.empty(0, np.int32))
    assert scheduler.steady_steps() == 0


def test_a_plan_under_way_is_taken_in_first():
    scheduler = FleetScheduler(config())
    scheduler.add(request(0, 4, 9))
    single_step(scheduler)
    scheduler.schedule()
    assert scheduler.steady_steps() == 0


def test_no_pass_comes_in_steady_steps():
    """Request 3 resumes and does not fit; 4 of another tenant may pass it once the first tenant holds more blocks."""
    scheduler = FleetScheduler(
        config(capacity=Limits(8, 64), num_blocks=200, block_size=2, max_model_len=400, prefix_caching=False)
    )

    def add(number, prompt, output, tenant, generated=0):
        each = request(number, prompt, output)
        each.scheduling = Scheduling(tenant=tenant)
        each.output_token_ids = np.full(generated, OUTPUT_TOKEN, np.int32)
        scheduler.add(each)

    add(0, 60, 130, "flood")
    add(1, 60, 130, "flood")
    add(2, 60, 130, "steady")
    for _ in range(4):
        single_step(scheduler)
    add(3, 240, 130, "flood", generated=10)
    add(4, 70, 4, "steady")
    num_steady, started = 0, []
    while not started:
        steps = scheduler.steady_steps()
        for _ in range(steps):
            plan, _ = single_step(scheduler)
            assert not plan.starts
        num_steady += steps
        plan, _ = single_step(scheduler)
        started = [start.request_id for start in plan.starts]
    assert started == [4]
    assert num_steady
