from hypothesis import given
from hypothesis import strategies as st

from inflight_gateway.tenants.accounts import TenantKey
from inflight_gateway.tenants.fair import MAX_RESTING, FairShares
from inflight_gateway.types import ServiceKey

CHAT = ServiceKey("default", "chat")


def key(tenant):
    return TenantKey(CHAT, tenant)


@given(st.lists(st.floats(0.25, 8), min_size=2, max_size=5), st.integers(50, 200))
def test_tenants_that_always_wait_are_served_by_their_weights(weights, rounds):
    fair = FairShares()
    tenants = [f"t{number}" for number in range(len(weights))]
    for tenant in tenants:
        fair.came(key(tenant))
    for _ in range(rounds * len(weights)):
        least = min(tenants, key=lambda tenant: fair.served(CHAT, tenant))
        fair.add(key(least), 100, 50, weights[tenants.index(least)])
    served = [fair.served(CHAT, tenant) for tenant in tenants]
    assert max(served) - min(served) <= 200 / min(weights) + 1e-6


def test_rest_saves_nothing_up():
    fair = FairShares()
    fair.came(key("busy"))
    fair.add(key("busy"), 10_000, 0, 1)
    fair.came(key("new"))
    assert fair.served(CHAT, "new") == fair.served(CHAT, "busy") == 10_000


def test_what_was_expected_is_corrected_by_what_was_served():
    fair = FairShares()
    fair.came(key("a"))
    fair.add(key("a"), 100, 256, 1)
    fair.add(key("a"), 0, 10 - 256, 1)
    assert fair.served(CHAT, "a") == 120


def test_the_expected_answer_follows_the_tenants_answers():
    fair = FairShares()
    assert fair.expected_output(key("a")) == 256
    for _ in range(60):
        fair.came(key("a"))
        fair.left(key("a"), 10)
    assert fair.expected_output(key("a")) == 10
    assert fair.expected_output(key("b")) == 256


def test_services_have_counters_of_their_own():
    fair = FairShares()
    fair.came(key("a"))
    fair.add(key("a"), 500, 0, 1)
    assert fair.served(ServiceKey("default", "other"), "a") == 0


def test_resting_tenants_are_bounded():
    fair = FairShares()
    for number in range(MAX_RESTING + 10):
        fair.came(key(str(number)))
        fair.left(key(str(number)), None)
    assert len(fair._services[CHAT]) <= MAX_RESTING
