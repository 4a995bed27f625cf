"""Tenants where the KV cache is full: that of a tenant that fills it is taken, and others do not wait for it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_settings.scheduling import ServiceClass
from tests.engine.scheduling.driver import Driver

SMALL = {"num_blocks": 16, "block_size": 2, "max_model_len": 32, "kv_headroom": 0.0, "prefix_caching": False}


def prompt(number, tokens):
    return [number % 7] * tokens


def until_preempted(driver):
    for _ in range(100):
        plan = driver.step()
        if plan.preemptions:
            return [each.request_id for each in plan.preemptions]
    raise AssertionError("nothing is preempted")


def flooded(**fields):
    """Requests 0 to 2 of a tenant that fills the cache; the last was preempted."""
    driver = Driver(**SMALL | fields)
    for number in range(3):
        driver.add(number, prompt(number, 4), 20, tenant="flood")
    assert until_preempted(driver) == [2]
    return driver


def test_a_request_of_the_tenant_with_the_most_blocks_is_preempted_though_others_are_younger():
    driver = Driver(**SMALL)
    for number in range(3):
        driver.add(number, prompt(number, 4), 20, tenant="flood")
    driver.add(3, prompt(3, 4), 12, tenant="steady")
    assert until_preempted(driver) == [2]


def test_tenants_are_counted_while_their_requests_run():
    driver = flooded()
    driver.add(3, prompt(3, 2), 2, tenant="steady")
    driver.step()
    assert driver.scheduler.running.tenants == {"flood": 2, "steady": 1}
    driver.run()
    assert driver.scheduler.running.tenants == {}


def test_of_equal_tenants_the_rule_decides():
    driver = Driver(**SMALL)
    for number in range(3):
        driver.add(number, prompt(number, 4), 20, tenant=str(number))
    assert until_preempted(driver) == [2]


def test_blocks_that_requests_share_count_once():
    driver = Driver(
        **SMALL | {"num_blocks": 100, "max_model_len": 128, "prefix_caching": True},
        max_num_seqs=8, max_num_batched_tokens=400,
    )  # fmt: skip
    driver.add(0, prompt(0, 4), 60, tenant="flood")
    for number in range(1, 5):
        driver.add(number, [*prompt(5, 40), number], 40, tenant="shares")
    driver.add(5, prompt(1, 40), 60, tenant="flood")
    driver.step()
    running = driver.scheduler.running
    assert running.blocks_by_tenant() == {"flood": 2 + 20, "shares": 20 + 4}
    assert running.blocks_of("shares") == running.blocks_of("shares", "default") == 24
    driver.add(6, prompt(2, 40), 60, tenant="flood")
    assert until_preempted(driver) == [6]


def test_a_new_request_passes_one_that_resumes_and_does_not_fit_if_its_tenant_holds_fewer_blocks():
    driver = flooded()
    driver.add(3, prompt(3, 2), 2, tenant="steady")
    driver.step()
    assert driver.admission_order == [0, 1, 2, 3]


def test_requests_of_the_same_tenant_wait_behind_one_that_resumes():
    driver = flooded()
    driver.add(3, prompt(3, 2), 2, tenant="flood")
    driver.run()
    assert driver.admission_order.index(3) > driver.admission_order.index(2, 3)


def test_a_tenant_that_would_hold_as_much_waits_too():
    driver = Driver(**SMALL)
    driver.add(0, prompt(0, 4), 20, tenant="flood")
    driver.add(1, prompt(1, 16), 12, tenant="steady")
    driver.add(2, prompt(2, 4), 20, tenant="flood")
    assert until_preempted(driver) == [1]
    driver.add(3, prompt(3, 2), 2, tenant="other")
    driver.add(4, prompt(4, 28), 4, tenant="large")
    driver.run()
    assert driver.admission_order.index(4) > driver.admission_order.index(1, 2)


CLASSES = (ServiceClass("first"), ServiceClass("second"))


def test_what_the_tenant_of_the_head_runs_in_another_class_lets_nobody_pass():
    driver = Driver(**SMALL, classes=CLASSES)
    driver.add(0, prompt(0, 20), 6, tenant="flood", service_class="second")
    driver.step()
    driver.add(1, prompt(1, 12), 4, tenant="flood", service_class="first", generated=2)
    driver.add(2, prompt(2, 2), 2, tenant="steady", service_class="first")
    driver.run()
    assert driver.admission_order == [0, 1, 2]


def growing(policy):
    """Request 2 of a tenant resumes and does not fit. Request 3 of another tenant does, and may pass once the first
    tenant's have grown by some blocks, or, where the policy is fair, once it is the first new one too."""
    driver = Driver(
        **SMALL | {"num_blocks": 200, "max_model_len": 400}, max_num_seqs=8, max_num_batched_tokens=64, policy=policy
    )
    driver.add(0, prompt(1, 60), 130, tenant="flood")
    driver.add(1, prompt(2, 60), 130, tenant="flood")
    driver.add(9, prompt(4, 60), 130, tenant="steady")
    for _ in range(4):
        driver.step()
    driver.add(2, prompt(3, 240), 130, tenant="flood", generated=10)
    if policy == "fair":
        driver.add(4, prompt(3, 20), 2, tenant="flood")
    driver.add(3, prompt(5, 70), 4, tenant="steady")
    return driver


@pytest.mark.parametrize("policy", ["fcfs", "fair"])
def test_a_pass_that_becomes_possible_as_decodes_go_on_is_noticed(policy):
    expected = growing(policy)
    while 3 not in expected.admission_order:
        expected.scheduler.changed = True  # Everything is decided in every step.
        expected.step()
    driver = growing(policy)
    while 3 not in driver.admission_order:
        driver.step()
    assert driver.scheduler.num_steps == expected.scheduler.num_steps


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 10)), min_size=1, max_size=8),
    st.integers(0, 2),
    st.sampled_from(["fcfs", "fair", "deadline"]),
)
def test_one_that_resumes_ends_though_requests_of_others_arrive_in_every_step(sizes, gap, policy):
    driver, number = flooded(policy=policy, max_num_seqs=6), 3
    for step in range(400):
        if step % (gap + 1) == 0 and driver.scheduler.num_waiting < 20:
            tokens, answer = sizes[number % len(sizes)]
            driver.add(number, prompt(number, tokens), answer, tenant=f"other {number % 3}")
            number += 1
        driver.step()
        if 2 in driver.finished:
            return
    raise AssertionError("it starves")


@settings(max_examples=20, deadline=None)
@given(st.integers(20, 30), st.lists(st.integers(15, 45), min_size=1, max_size=8), st.integers(90, 130))
def test_nor_does_one_starve_whose_tenant_is_busy_in_another_class(size, answers, length):
    driver = Driver(
        **SMALL | {"num_blocks": 100, "max_model_len": 150}, max_num_seqs=24, max_num_batched_tokens=64, classes=CLASSES
    )
    number, running = 1, {"flood": set(), "steady": set()}
    for step in range(600):
        for tenant, most, tokens, service_class in (("flood", 12, 2, "second"), ("steady", 4, size, "first")):
            running[tenant] -= driver.finished.keys()
            while len(running[tenant]) < most:
                answer = answers[number % len(answers)] if tenant == "flood" else 1
                driver.add(number, prompt(number, tokens), answer, tenant=tenant, service_class=service_class)
                running[tenant].add(number)
                number += 1
        if step == 60:
            driver.add(0, prompt(0, length), 12, tenant="flood", service_class="first", generated=8)
        driver.step()
        if 0 in driver.finished:
            return
    raise AssertionError("it starves")
