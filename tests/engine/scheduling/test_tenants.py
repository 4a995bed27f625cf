"""Tenants where the KV cache is full: that of a tenant that fills it is taken, and others do not wait for it."""

from hypothesis import given, settings
from hypothesis import strategies as st

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
    assert driver.scheduler._running.tenants == {"flood": 2, "steady": 1}
    driver.run()
    assert driver.scheduler._running.tenants == {}


def test_of_equal_tenants_the_rule_decides():
    driver = Driver(**SMALL)
    for number in range(3):
        driver.add(number, prompt(number, 4), 20, tenant=str(number))
    assert until_preempted(driver) == [2]


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
