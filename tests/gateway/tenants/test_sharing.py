"""Limits of several gateways together: in one process, over a network that the test controls, and over HTTP."""

import asyncio
import time

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_base.manifest.keys import ServiceKey
from inflight_base.signing import PEER_SIGNATURE, signed
from inflight_gateway.tenants import wire
from inflight_gateway.tenants.accounts import TenantKey
from inflight_gateway.tenants.routes import PeerClient, limits_handler
from inflight_gateway.tenants.sharing import SharedLimits, owner_of
from inflight_gateway.types import RateLimits
from tests.gateway.gateway_stack import until
from tests.gateway.tenants.things import gateway_key

CHAT = ServiceKey("team-a", "chat")
KEY = TenantKey(CHAT, "acme")


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A busy machine is no gateway that is away."""
    monkeypatch.setattr("inflight_gateway.tenants.link.ANSWER_S", 30.0)


class Network:
    """Gateways gw-0, gw-1, ... that reach each other. Attributes: down: those that do not answer. calls: made."""

    def __init__(self, count, delay=0.0):
        self.names = [f"gw-{number}" for number in range(count)]
        self.delay, self.down, self.calls = delay, set(), 0
        self.gateways = {name: SharedLimits(name, self._peers(name), self._post) for name in self.names}

    def _peers(self, name):
        return lambda: {other: other for other in self.names if other != name}

    async def _post(self, address, content):
        self.calls += 1
        await asyncio.sleep(self.delay)
        if address in self.down:
            raise ConnectionRefusedError("refused")
        return wire.encoded(self.gateways[address].answer(wire.batch(content), time.monotonic()))

    def owner(self, key=KEY):
        return self.gateways[owner_of(key, self.names)]

    def others(self, key=KEY):
        return [self.gateways[name] for name in self.names if name != owner_of(key, self.names)]

    async def admit(self, gateway, limits, tokens=1, key=KEY):
        return await gateway.admit(key, limits, tokens, time.monotonic())


def admitted(grants):
    return [one for one in grants if one.verdict.refused_by is None]


async def settled():
    """Lets calls under way end."""
    for _ in range(20):
        await asyncio.sleep(0)


@given(st.integers(2, 4), st.lists(st.integers(0, 3), min_size=1, max_size=150), st.integers(1, 60))
@settings(deadline=None, max_examples=50)
async def test_all_gateways_together_admit_exactly_the_limit(count, at, limit):
    network = Network(count)
    limits = RateLimits(requests_per_minute=limit)
    grants = await asyncio.gather(*(network.admit(network.gateways[f"gw-{number % count}"], limits) for number in at))
    assert len(admitted(grants)) == min(limit, len(at))


@given(
    st.lists(st.tuples(st.sampled_from(["take", "end", "pause"]), st.integers(0, 2)), max_size=100), st.integers(1, 5)
)
@settings(deadline=None, max_examples=50)
async def test_concurrent_requests_of_all_gateways_together_never_exceed_the_limit(steps, limit):
    network, running, pending = Network(3), [], []
    limits = RateLimits(concurrent_requests=limit)
    for step, number in steps:
        if step == "take":
            pending.append(asyncio.ensure_future(network.admit(network.gateways[f"gw-{number}"], limits)))
        elif step == "end" and running:
            gateway, grant = running.pop(number % len(running))
            gateway.release(grant)
        else:
            await asyncio.sleep(0)
        for task in [task for task in pending if task.done()]:
            pending.remove(task)
            grant = task.result()
            if grant.verdict.refused_by is None:
                running.append((gateway_of(network, grant), grant))
        assert len(running) <= limit
    await asyncio.gather(*pending)


def gateway_of(network, grant):
    """A gateway that may release the grant: the one whose accounts have it in flight."""
    return max(network.gateways.values(), key=lambda one: one._accounts.in_flight(grant.key))


async def test_released_requests_make_room_at_all_gateways():
    network, limits = Network(2), RateLimits(concurrent_requests=2)
    (other,) = network.others()
    first = await network.admit(other, limits)
    await network.admit(network.owner(), limits)
    assert (await network.admit(other, limits)).verdict.refused_by == "concurrent_requests"
    other.release(first)
    await settled()
    assert (await network.admit(network.owner(), limits)).verdict.refused_by is None


async def test_usage_is_settled_at_the_owner():
    network, limits = Network(2), RateLimits(tokens_per_minute=100)
    (other,) = network.others()
    grant = await network.admit(other, limits, tokens=100)
    assert (await network.admit(network.owner(), limits, tokens=50)).verdict.refused_by == "tokens"
    other.settle(grant, 30)
    await settled()
    assert (await network.admit(network.owner(), limits, tokens=70)).verdict.refused_by is None


async def test_requests_that_come_together_share_one_call():
    network, limits = Network(2, delay=0.005), RateLimits(requests_per_minute=1000)
    (other,) = network.others()
    await asyncio.gather(*(network.admit(other, limits) for _ in range(500)))
    assert network.calls <= 2


async def test_tenants_without_limits_ask_nobody():
    network = Network(2)
    for gateway in network.gateways.values():
        await network.admit(gateway, RateLimits())
    assert network.calls == 0


async def test_without_the_owner_each_gateway_enforces_its_part():
    network, limits = Network(2), RateLimits(requests_per_minute=10)
    (other,) = network.others()
    network.down = set(network.names)
    grants = [await network.admit(other, limits) for _ in range(10)]
    assert len(admitted(grants)) == 5
    assert network.calls == 1  # an owner that is away is not asked for each request


async def test_what_the_owner_admitted_counts_when_it_is_gone():
    network, limits = Network(2), RateLimits(requests_per_minute=10)
    (other,) = network.others()
    await asyncio.gather(*(network.admit(other, limits) for _ in range(4)))
    network.down = set(network.names)
    assert len(admitted([await network.admit(other, limits) for _ in range(10)])) == 1


async def test_an_owner_that_hangs_costs_a_request_no_more_than_its_time(monkeypatch):
    monkeypatch.setattr("inflight_gateway.tenants.link.ANSWER_S", 0.05)
    network, limits = Network(2, delay=30.0), RateLimits(requests_per_minute=10)
    (other,) = network.others()
    began = time.monotonic()
    grants = await asyncio.gather(*(network.admit(other, limits) for _ in range(4)))
    assert len(admitted(grants)) == 4
    assert 0.05 <= time.monotonic() - began < 5


async def test_an_owner_that_returns_is_asked_again(monkeypatch):
    monkeypatch.setattr("inflight_gateway.tenants.link.AWAY_S", 0.01)
    network, limits = Network(2), RateLimits(requests_per_minute=10)
    (other,) = network.others()
    network.down = set(network.names)
    assert (await network.admit(other, limits)).owner is None
    network.down = set()
    await asyncio.sleep(0.02)
    assert (await network.admit(other, limits)).owner is not None


async def test_an_owner_that_returns_is_told_what_was_admitted_without_it(monkeypatch):
    monkeypatch.setattr("inflight_gateway.tenants.link.AWAY_S", 0.01)
    network, limits = Network(2), RateLimits(requests_per_minute=10)
    (other,) = network.others()
    network.down = set(network.names)
    assert len(admitted([await network.admit(other, limits) for _ in range(10)])) == 5
    network.down = set()
    await asyncio.sleep(0.02)
    assert len(admitted([await network.admit(other, limits) for _ in range(10)])) == 5
    assert (await network.admit(network.owner(), limits)).verdict.refused_by == "requests"


async def test_an_outage_is_logged_once_and_its_end_too(monkeypatch, caplog):
    monkeypatch.setattr("inflight_gateway.tenants.link.AWAY_S", 0.0)
    caplog.set_level("INFO")
    network, limits = Network(2), RateLimits(requests_per_minute=10)
    (other,) = network.others()
    network.down = set(network.names)
    for _ in range(3):
        await network.admit(other, limits)
    network.down = set()
    await network.admit(other, limits)
    assert [one.message.partition(" ")[2].partition(" ")[2] for one in caplog.records] == [
        "does not answer for limits, deciding alone for now: refused",
        "answers for limits again",
    ]


async def test_an_unforeseen_error_of_the_network_leaves_no_request_waiting():
    async def post(address, content):
        raise RuntimeError("Session is closed")

    key = next(key for key in (TenantKey(CHAT, str(one)) for one in range(99)) if owner_of(key, "ab") == "b")
    limits = SharedLimits("a", lambda: {"b": "address"}, post)
    grant = await limits.admit(key, RateLimits(requests_per_minute=10), 1, time.monotonic())
    assert (grant.owner, grant.verdict.refused_by) == (None, None)


async def test_requests_in_flight_at_a_gateway_that_died_stop_counting():
    network, limits = Network(2), RateLimits(concurrent_requests=1)
    (other,) = network.others()
    await network.admit(other, limits)
    owner, now = network.owner(), time.monotonic()
    assert (await owner.admit(KEY, limits, 1, now + 9)).verdict.refused_by is not None
    assert (await owner.admit(KEY, limits, 1, now + 11)).verdict.refused_by is None


async def test_long_requests_are_reported_again():
    network, limits = Network(2), RateLimits(concurrent_requests=1)
    (other,) = network.others()
    await network.admit(other, limits)
    calls = network.calls
    other._report()
    await settled()
    assert network.calls == calls + 1


async def test_a_request_that_is_cancelled_while_it_asks_leaves_nothing_in_flight():
    network, limits = Network(2, delay=0.5), RateLimits(concurrent_requests=1)
    (other,) = network.others()
    task = asyncio.create_task(network.admit(other, limits))
    await until(lambda: network.calls == 1, "the owner is asked")
    assert task.cancel()
    await until(lambda: network.calls == 2, "the owner is told that the request is gone")

    async def room():
        return (await network.admit(network.owner(), limits)).verdict.refused_by is None

    await until(room, "the owner has heard it")
    assert other._accounts.keys_in_flight() == []


def test_a_gateway_that_goes_moves_only_its_own_tenants():
    keys = [TenantKey(CHAT, str(number)) for number in range(1000)]
    before = {key: owner_of(key, ["a", "b", "c"]) for key in keys}
    after = {key: owner_of(key, ["a", "b"]) for key in keys}
    assert all(after[key] == before[key] for key in keys if before[key] != "c")
    assert all(250 < sum(owner == name for owner in before.values()) < 420 for name in "abc")


class TestOverHttp:
    @pytest.fixture
    async def owner(self):
        """A gateway's HTTP port, for a tenant that it owns."""
        limits = SharedLimits("owner", lambda: {}, None)
        app = web.Application()
        app.router.add_post(wire.PATH, limits_handler(limits, gateway_key()))
        server = TestServer(app)
        await server.start_server()
        yield server
        await server.close()

    def client_of(self, server, *keys):
        client = PeerClient(gateway_key(*keys))
        return client, SharedLimits("me", lambda: {"owner": f"{server.host}:{server.port}"}, client.post)

    def owned(self):
        return next(
            key
            for key in (TenantKey(CHAT, str(number)) for number in range(100))
            if owner_of(key, ["me", "owner"]) == "owner"
        )

    async def test_a_signed_question_is_answered(self, owner):
        client, me = self.client_of(owner)
        limits = RateLimits(requests_per_minute=3, tokens_per_minute=10_000)
        grants = [await me.admit(self.owned(), limits, 10, time.monotonic()) for _ in range(5)]
        assert [one.owner for one in grants] == ["owner"] * 5
        assert len(admitted(grants)) == 3
        assert grants[0].verdict.tokens.remaining == 9990
        await client.close()

    async def test_a_wrong_key_is_refused_and_the_gateway_decides_alone(self, owner, caplog):
        client, me = self.client_of(owner, b"another key")
        grant = await me.admit(self.owned(), RateLimits(requests_per_minute=3), 10, time.monotonic())
        assert grant.owner is None
        assert "401 the call is not signed" in caplog.text
        await client.close()

    @pytest.mark.parametrize("keys", [(b"gateway key",), (b"gateway key", b"old"), (b"new", b"gateway key")])
    async def test_while_the_key_is_rotated_calls_are_answered(self, owner, keys):
        client, me = self.client_of(owner, *keys)
        assert (await me.admit(self.owned(), RateLimits(requests_per_minute=3), 10, time.monotonic())).owner == "owner"
        await client.close()

    @pytest.mark.parametrize("age", [-wire.MAX_AGE_S - 1, wire.MAX_AGE_S + 1])
    async def test_a_call_of_another_time_is_refused_since_it_would_charge_again(self, owner, age):
        content = wire.encoded(wire.Batch("me"))
        headers = {PEER_SIGNATURE: signed([b"gateway key"], wire.to_sign(content), time.time() - age)}
        async with aiohttp.ClientSession() as http:
            for given, status in ((headers, 401), ({}, 401)):
                url = f"http://{owner.host}:{owner.port}{wire.PATH}"
                async with http.post(url, data=content, headers=given) as answer:
                    assert answer.status == status

    @pytest.mark.parametrize(
        ("content", "status"),
        [
            (b"{", 400),
            (b'{"gateway": 1}', 400),
            (b"x" * (wire.MAX_BYTES + 1), 413),
        ],
        ids=["no JSON", "no batch", "too long"],
    )
    async def test_messages_that_are_none_are_refused(self, owner, content, status):
        client = PeerClient(gateway_key())
        with pytest.raises(ValueError, match=f"^{status} "):
            await client.post(f"{owner.host}:{owner.port}", content)
        await client.close()
