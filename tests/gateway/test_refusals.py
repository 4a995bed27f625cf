from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway import wiring
from inflight_gateway.settings import PickerSettings
from inflight_gateway.timers import Timers
from inflight_gateway.types import Endpoint, RequestView, ServiceConfig
from inflight_gateway.wiring import REFUSAL_S


def test_a_refusal_is_recent_for_a_second_from_the_last_one():
    refusals = Timers(REFUSAL_S)
    assert not refusals.runs("a", 0.0)
    refusals.begin("a", 0.0)
    refusals.begin("a", 0.5)
    assert refusals.runs("a", 0.4 + REFUSAL_S)
    assert not refusals.runs("b", 0.4 + REFUSAL_S)
    assert not refusals.runs("a", 0.5 + REFUSAL_S)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1)), max_size=50))
def test_only_recent_refusals_are_remembered(refused):
    refusals, last, now = Timers(REFUSAL_S), {}, 0.0
    for address, pause in refused:
        now += pause
        refusals.expire(now)
        refusals.begin(address, now)
        last[address] = now
        for one in "abc":
            assert refusals.runs(one, now) == (one in last and now < last[one] + REFUSAL_S)
    refusals.expire(now + REFUSAL_S)
    assert not refusals


async def test_the_picker_avoids_an_endpoint_for_a_second_after_it_refused_a_request(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(wiring, "monotonic", lambda: clock[0])
    gateway = wiring.Gateway(PickerSettings(), None)
    monkeypatch.setattr(gateway._scraper, "keep", lambda _: None)
    key = ServiceKey("ns", "chat")
    config = ServiceConfig(key, "u", "m")
    endpoints = [Endpoint(f"10.0.0.{number}:80", "pod") for number in (1, 2)]
    gateway.catalog.update(services={key: config}, endpoints={key: endpoints})

    def picked(number):
        """Equal endpoints are picked by the request's id."""
        name, starter = str(number), gateway._requests._starter
        pick = starter.start(RequestView(name, key, clock[0]), (), clock[0])
        starter.ended(name, clock[0])
        return [endpoint.address for endpoint in pick.endpoints]

    firsts = {picked(number)[0] for number in range(20)}
    assert firsts == {endpoint.address for endpoint in endpoints}
    gateway._refused(endpoints[0].address)
    clock[0] += REFUSAL_S - 0.01
    assert {picked(number)[0] for number in range(20)} == {endpoints[1].address}
    # With nothing else left it is asked.
    gateway._refused(endpoints[1].address)
    assert {picked(number)[0] for number in range(20)} == firsts
    clock[0] += 2 * REFUSAL_S
    gateway.tick()
    assert {picked(number)[0] for number in range(20)} == firsts
