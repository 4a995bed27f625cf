"""Picks of the starter, beside those of the picker itself."""

from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.engines.ledger import Ledger
from inflight_gateway.pick.picker import Picker
from inflight_gateway.requests.starter import Starter
from inflight_gateway.tenants.estimate import Estimates
from inflight_gateway.types import Endpoint
from tests.gateway.pick.loads import CONFIG, NOW, request, sample

BUSY, IDLE = "10.0.0.1:80", "10.0.0.2:80"


def starter():
    """Two replicas without requests of this gateway; one of them computes long prompts of others."""
    samples = {BUSY: sample(waiting_prompt_tokens=200_000, waiting=4), IDLE: sample(running=9)}
    catalog = Catalog()
    catalog.update(services={CONFIG.key: CONFIG}, endpoints={CONFIG.key: [Endpoint(one, "p") for one in samples]})
    return Starter(catalog, Picker(), Ledger(catalog.endpoints_of, samples.get, Estimates()))


def test_a_request_that_keeps_replicas_free_waits_until_more_are_ready():
    assert starter().start(request(), (), NOW, kept_free=1.0) is None


def test_a_request_with_allowed_replicas_goes_to_the_best_one_and_keeps_none_free():
    pick = starter().start(request(), {BUSY, IDLE}, NOW, kept_free=1.0)
    assert (pick.endpoints[0].address, pick.reason) == (IDLE, "least-work")
