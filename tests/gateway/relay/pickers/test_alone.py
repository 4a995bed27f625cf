"""Picks of a relay without a picker."""

from __future__ import annotations

from collections import Counter

import pytest

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.link.wire import Ask, Go, Refuse
from inflight_gateway.relay.pickers.alone import Alone
from inflight_gateway.request.body import Body
from inflight_gateway.types import Endpoint, Finished, RateLimits, ServiceConfig

CHAT = ServiceKey("a", "chat")
ADDRESSES = [f"10.0.0.{number}:8000" for number in range(4)]


def alone(in_flight=None, relays=1, **limits) -> Alone:
    catalog = Catalog()
    catalog.update(
        services={CHAT: ServiceConfig(CHAT, "u", "m", default_limits=RateLimits(**limits), max_attempts=3)},
        endpoints={CHAT: [Endpoint(address, "pod") for address in ADDRESSES]},
    )
    made = Alone(catalog, Counter(in_flight or {}).__getitem__)
    made.relays = relays
    return made


def ask(number=1, attempt=1, **more) -> Ask:
    fields = {"tenant": "acme", "body": Body(prompt_tokens=10, max_tokens=20)} | more
    return Ask(f"r-{number}", attempt, CHAT, **fields)


def test_the_engine_with_the_fewest_requests_is_first():
    picked = alone(dict(zip(ADDRESSES, [3, 1, 0, 2], strict=True))).pick(ask(), 0.0)
    assert picked == Go("r-1", 1, (ADDRESSES[2], ADDRESSES[1], ADDRESSES[3]))


def test_requests_spread_over_equal_engines():
    idle = alone()
    firsts = Counter(idle.pick(ask(number), 0.0).endpoints[0] for number in range(400))
    assert min(firsts[address] for address in ADDRESSES) > 60


def test_engines_that_failed_the_request_are_avoided_and_attempts_bounded():
    picked = alone().pick(ask(attempt=3, avoid=tuple(ADDRESSES[:3])), 0.0)
    assert picked.endpoints == (ADDRESSES[3],)
    assert len(alone().pick(ask(attempt=3), 0.0).endpoints) == 1


def test_without_an_engine_it_is_503_at_once():
    refuse = alone().pick(ask(avoid=tuple(ADDRESSES)), 0.0)
    assert (refuse.status, refuse.code, dict(refuse.headers)) == (503, "no_replica", {"retry-after": "5"})


def test_a_deleted_service_is_404():
    refuse = alone().pick(Ask("r", 1, ServiceKey("a", "gone")), 0.0)
    assert refuse.status == 404


@pytest.mark.parametrize("relays", [1, 2, 4])
def test_each_relay_of_each_pod_has_its_share_of_a_tenants_limits(relays):
    one = alone(relays=relays, requests_per_minute=8)
    answers = [one.pick(ask(number), 0.0) for number in range(10)]
    assert sum(isinstance(answer, Go) for answer in answers) == 8 // relays
    assert isinstance(answers[-1], Refuse)
    assert answers[-1].status == 429
    assert isinstance(one.pick(ask(20), 61.0), Go)
    assert isinstance(one.pick(ask(21, tenant="other"), 0.0), Go)


def test_the_charge_of_a_request_is_corrected_when_it_ends():
    one = alone(tokens_per_minute=100, concurrent_requests=2)
    first = one.pick(ask(1, body=Body(prompt_tokens=10, max_tokens=90)), 0.0)
    assert dict(first.headers)["x-ratelimit-remaining-tokens"] == "0"
    assert isinstance(one.pick(ask(2), 0.0), Refuse)
    one.ended(Finished("r-1", CHAT, 200, stream=False, prompt_tokens=10, completion_tokens=5), 1.0)
    assert isinstance(one.pick(ask(3), 1.0), Go)
    one.ended(Finished("unknown", CHAT, 200, stream=False), 1.0)


def test_requests_in_flight_are_counted_until_they_end():
    one = alone(concurrent_requests=1)
    assert isinstance(one.pick(ask(1), 0.0), Go)
    assert isinstance(one.pick(ask(2), 0.0), Refuse)
    one.ended(Finished("r-1", CHAT, 200, stream=False), 0.0)
    assert isinstance(one.pick(ask(2), 0.0), Go)


def test_choices_count_each():
    one = alone(tokens_per_minute=1000)
    picked = one.pick(ask(body=Body(prompt_tokens=10, max_tokens=20, choices=4)), 0.0)
    assert dict(picked.headers)["x-ratelimit-remaining-tokens"] == str(1000 - 10 - 80)


def test_later_attempts_are_neither_charged_nor_refused():
    one = alone(requests_per_minute=1)
    assert isinstance(one.pick(ask(1), 0.0), Go)
    assert isinstance(one.pick(ask(1, attempt=2), 0.0), Go)
    assert isinstance(one.pick(ask(2), 0.0), Refuse)


def test_a_request_that_a_picker_has_admitted_is_neither_charged_nor_refused():
    one = alone(requests_per_minute=1)
    assert isinstance(one.pick(ask(1, admitted=True), 0.0), Go)
    assert isinstance(one.pick(ask(2), 0.0), Go)
    assert isinstance(one.pick(ask(3), 0.0), Refuse)
    assert isinstance(one.pick(ask(4, admitted=True), 0.0), Go)
