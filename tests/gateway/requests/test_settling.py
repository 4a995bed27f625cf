"""Requests of a service that comes from another picker wait for what all relays have to say."""

from __future__ import annotations

import pytest

from inflight_gateway.link.wire import Ask, Go, Held, Running
from inflight_gateway.requests.settling import KNOWN_S, SETTLE_S, Settling
from tests.gateway.requests.world import KEY, World

MOVED = [{"admitted": True}, {"without": ("gw-1",)}, {"turns": 1}]


@pytest.mark.parametrize("fields", MOVED)
def test_a_service_settles_once_when_its_first_request_comes_from_another_picker(fields):
    settling = Settling()
    settling.came(Ask("a", 1, KEY, **fields), 100.0)
    assert KEY in settling
    assert list(settling.settled(100.0 + SETTLE_S / 2)) == []
    assert list(settling.settled(100.0 + SETTLE_S)) == [KEY]
    settling.came(Ask("b", 1, KEY, **fields), 100.0 + KNOWN_S - 1.0)
    settling.came(Ask("c", 1, KEY, **fields), 100.0 + 2 * KNOWN_S - 2.0)
    assert KEY not in settling


def test_a_request_that_no_other_picker_had_does_not_wait():
    settling = Settling()
    settling.came(Ask("a", 1, KEY), 100.0)
    assert KEY not in settling
    settling.came(Ask("b", 1, KEY, without=("gw-1",)), 101.0)
    assert KEY not in settling


def test_a_pod_that_stays_out_of_reach_delays_no_service_that_is_seldom_asked():
    settling, gone = Settling(), {"without": ("gw-1",)}
    settling.came(Ask("a", 1, KEY, **gone), 100.0)
    assert list(settling.settled(101.0)) == [KEY]
    for hours in range(1, 4):
        settling.came(Ask(f"{hours}", 1, KEY, **gone), 100.0 + 3600 * hours)
        assert KEY not in settling
    settling.came(Ask("b", 1, KEY, without=("gw-1", "gw-2")), 20_000.0)
    assert KEY in settling


def test_a_request_of_one_relay_does_not_take_the_place_of_those_that_another_relay_names_later():
    world = World(endpoints=1)
    asked = Ask("late", 1, KEY, admitted=True, waited_s=1.0)
    world.requests.ask(asked, "r1", world.said.append)
    assert world.said == [Held("late", 1)]
    for number in range(2):
        running = Running(Ask(f"{number}", 1, KEY), "10.0.0.0:80")
        world.requests.running(running, "r0", world.said.append)
    world.requests.ask(Ask("early", 1, KEY, admitted=True, waited_s=2.0), "r0", world.said.append)
    world.now += SETTLE_S
    world.requests.expire()
    for number in range(2):
        world.end(f"{number}")
    assert [one.id for one in world.said if isinstance(one, Go)] == ["early", "late"]
