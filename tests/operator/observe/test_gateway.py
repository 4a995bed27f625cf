"""The operator follows the gateway's pods: what they say, when they are silent, and what is no state stream."""

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_base.kube.errors import KubeApiError
from inflight_base.manifest.keys import ServiceKey
from inflight_base.manifest.slices import GatewayAddress
from inflight_operator.observe import gateway as gateway_module
from inflight_operator.observe import gateway_lines
from inflight_operator.observe.gateway import GatewayReader, gateway_addresses, gateway_pods
from inflight_operator.observe.gateway_lines import GatewayStreamError, lines, read_line
from inflight_operator.observe.gateway_view import GatewayDemand
from tests.operator.gateway_pods import endpoint_slice, gateway_pod, line, said

CHAT, CODE = ServiceKey("team", "chat"), ServiceKey("team", "code")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(gateway_module, "LOOKUP_SECONDS", 0.05)
    monkeypatch.setattr(gateway_module, "LONGEST_PAUSE", 0.05)


class Slices:
    def __init__(self, *slices):
        self.slices = list(slices)
        self.error = None

    async def __call__(self):
        if self.error is not None:
            raise self.error
        return self.slices


@asynccontextmanager
async def reading(slices, port, monkeypatch):
    """A reader at work, and the services for which it reported held requests."""
    monkeypatch.setattr(gateway_module, "GATEWAY_STATE_PORT", port)
    woken = []

    async def held(key):
        woken.append(key)

    async with aiohttp.ClientSession() as http:
        reader = GatewayReader(http, slices, held, lambda: [b"gateway key"])
        task = asyncio.create_task(reader.run())
        try:
            yield reader, woken
        finally:
            task.cancel()
            await asyncio.wait({task})


async def until(holds, seconds=60.0):
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_lines_are_taken_as_they_come_and_what_begins_to_be_held_is_reported_once(monkeypatch):
    async with gateway_pod() as pod:
        pod.begins_with(said("chat", idle=40.0), said("code", in_flight=2))
        async with reading(Slices(endpoint_slice("g-1")), pod.port, monkeypatch) as (reader, woken):
            await reader.settled(60.0)
            view = reader.view(CHAT)
            assert (view.known, view.pods, view.heard, view.held) == (True, 1, 1, 0)
            assert 40.0 <= view.idle_s < 45.0
            assert reader.view(CODE).in_flight == 2
            await pod.says(said("chat", held=1, tokens=300, oldest=0.1))
            await pod.says(said("chat", held=2, tokens=600, oldest=0.2))
            await until(lambda: reader.view(CHAT).held == 2)
            assert woken == [CHAT]
            assert reader.view(CHAT).held_prompt_tokens == 600
            assert reader.view(CODE).in_flight == 2  # a line of changes says nothing of others
            await pod.says(said("chat"))
            await pod.says(said("chat", held=1))
            await until(lambda: len(woken) == 2)
            await pod.says(said("code"), full=True)
            await until(lambda: not reader.view(CHAT).known)  # a pod that does not know the service cannot hold for it
            assert reader.view(CHAT).silence == "gateway pod g-1 does not know team/chat yet"
            assert reader.pods == (1, 1)


async def test_a_pod_that_hangs_up_is_silent_until_it_is_reached_again_and_is_idle_since_then(monkeypatch):
    async with gateway_pod() as pod:
        pod.begins_with(said("chat", idle=500.0))
        async with reading(Slices(endpoint_slice("g-1")), pod.port, monkeypatch) as (reader, _):
            await reader.settled(60.0)
            assert reader.view(CHAT).idle_s >= 500.0
            pod.status = 503
            await pod.hangs_up()
            await until(lambda: "HTTP 503" in reader.view(CHAT).silence)
            assert (reader.view(CHAT).known, reader.pods) == (False, (0, 1))
            pod.status = 200
            pod.begins_with(said("chat"))  # restarted: it knows of no request
            await until(lambda: reader.view(CHAT).known)
            assert reader.view(CHAT).idle_s < 5.0


async def test_requests_held_when_the_operator_comes_are_reported(monkeypatch):
    async with gateway_pod() as pod:
        pod.begins_with(said("chat", held=4), said("code", held=1))
        async with reading(Slices(endpoint_slice("g-1")), pod.port, monkeypatch) as (reader, woken):
            await reader.settled(60.0)
            await until(lambda: len(woken) == 2)
            assert set(woken) == {CHAT, CODE}


async def test_pods_come_and_go_and_one_that_starts_is_not_waited_for(monkeypatch):
    async with gateway_pod() as pod:
        pod.begins_with(said("chat", held=1))
        slices = Slices(endpoint_slice("g-1", "g-2"))
        async with reading(slices, pod.port, monkeypatch) as (reader, _):
            await until(lambda: reader.view(CHAT).heard == 2)
            assert reader.view(CHAT).held == 2
            slices.slices = [endpoint_slice("g-1")]
            await until(lambda: reader.view(CHAT).pods == 1)
            assert reader.view(CHAT).held == 1
            slices.slices = []
            await until(lambda: reader.view(CHAT).pods == 0)
            assert not reader.view(CHAT).known
    starting = gateway_pods([endpoint_slice("g-1", ready=False, serving=False)])
    draining = gateway_pods([endpoint_slice("g-1", ready=False, serving=False, terminating=True)])
    assert not starting["g-1"].takes_requests
    assert draining["g-1"].takes_requests
    assert gateway_pods([{"endpoints": [{"addresses": ["fd00::1"]}]}])["fd00::1"].url.startswith("http://[fd00::1]:")


async def test_services_have_a_round_at_once_when_a_gateway_pod_comes_or_goes(monkeypatch):
    async with gateway_pod() as pod, aiohttp.ClientSession() as http:
        monkeypatch.setattr(gateway_module, "GATEWAY_STATE_PORT", pod.port)
        slices, moved = Slices(endpoint_slice("g-1", "g-2")), []

        async def held(_):
            return None

        reader = GatewayReader(http, slices, held, lambda: [], lambda: moved.append(len(reader.addresses)))
        task = asyncio.create_task(reader.run())
        try:
            await until(lambda: moved)
            slices.slices = [endpoint_slice("g-1", "g-2", ready=False)]
            await until(lambda: len(moved) == 2)
            await asyncio.sleep(0.12)  # two further lists
        finally:
            task.cancel()
            await asyncio.wait({task})
    assert moved[1:] == [0]


def test_addresses_are_those_of_ready_pods_and_an_endpoint_without_conditions_is_ready():
    drains = {"ready": True, "serving": True, "terminating": True}
    slices = [
        {"endpoints": [{"addresses": ["10.0.0.3"], "conditions": {"ready": False}}, {"addresses": ["10.0.0.2"]}]},
        {"endpoints": None, "ports": None},
        {
            "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}}, {"addresses": ["fd00::1"]}],
            "ports": [{"name": "ext-proc", "port": 9002}, {"name": "http", "port": 8088}],
        },
        {"endpoints": [{"addresses": ["10.0.0.4"], "conditions": drains}]},
    ]
    assert gateway_addresses(slices) == (
        GatewayAddress("10.0.0.1", 8088),
        GatewayAddress("10.0.0.2", 8080),
        GatewayAddress("fd00::1", 8088),
    )
    assert [one.family for one in gateway_addresses(slices)] == ["IPv4", "IPv4", "IPv6"]


async def test_the_addresses_are_those_of_the_last_list_and_unknown_before_the_first(monkeypatch):
    async with gateway_pod() as pod:
        pod.begins_with(said("chat"))
        slices = Slices(endpoint_slice("g-1"))
        slices.error = KubeApiError("GET", 403, "forbidden")
        async with reading(slices, pod.port, monkeypatch) as (reader, _):
            await until(lambda: "forbidden" in reader.view(CHAT).silence)
            assert reader.addresses is None
            slices.error = None
            await until(lambda: reader.addresses == (GatewayAddress("127.0.0.1"),))
            slices.slices = []
            await until(lambda: reader.addresses == ())


async def test_a_lookup_that_is_refused_keeps_the_pods_and_is_said_where_there_are_none(monkeypatch):
    async with gateway_pod() as pod:
        pod.begins_with(said("chat", held=1))
        slices = Slices(endpoint_slice("g-1"))
        async with reading(slices, pod.port, monkeypatch) as (reader, _):
            await reader.settled(60.0)
            slices.error = KubeApiError("GET", 403, "forbidden")
            await until(lambda: not reader.view(CHAT).known)  # there may be a pod that is not in the list
            assert reader.view(CHAT).held == 1
        async with reading(slices, pod.port, monkeypatch) as (reader, _):
            await until(lambda: "forbidden" in reader.view(CHAT).silence)
            await reader.settled(0.05)


@pytest.mark.parametrize(
    "data",
    [
        b"[]\n",
        b"nonsense\n",
        line(False, [said("chat")]),
        line(True, [said("chat", held=-1)]),
        line(True, [said("chat", held=True)]),
        line(True, [said("chat", in_flight=1.5)]),
        line(True, [said("chat", idle=float("nan"))]),
        json.dumps({"full": True, "services": [{"name": "chat"}]}).encode() + b"\n",
    ],
)
async def test_what_is_no_state_stream_is_not_taken(data, monkeypatch):
    async with gateway_pod() as pod:
        pod.first = data
        async with reading(Slices(endpoint_slice("g-1")), pod.port, monkeypatch) as (reader, woken):
            await until(lambda: "no state" in reader.view(CHAT).silence or "first line" in reader.view(CHAT).silence)
            assert not woken
            pod.begins_with(said("chat"))
            await until(lambda: reader.view(CHAT).known)


async def test_a_silent_stream_counts_as_broken(monkeypatch):
    monkeypatch.setattr(gateway_module, "SILENCE_SECONDS", 0.2)
    async with gateway_pod() as pod:
        pod.begins_with(said("chat"))
        async with reading(Slices(endpoint_slice("g-1")), pod.port, monkeypatch) as (reader, _):
            await reader.settled(60.0)
            await until(lambda: "does not answer" in reader.view(CHAT).silence)


async def test_the_demand_of_a_service_is_the_sum_over_classes_for_each_pod(monkeypatch):
    async with gateway_pod() as pod:
        pod.begins_with(
            said("chat", chat={"arrived": 3, "prompt_tokens": 30, "sent": 2}, batch={"arrived": 4, "later": 1})
        )
        async with reading(Slices(endpoint_slice("g-1", "g-2")), pod.port, monkeypatch) as (reader, _):
            await reader.settled(60.0)
            view = reader.view(CHAT)
            assert view.demand == dict.fromkeys(("g-1", "g-2"), GatewayDemand(arrived=7, prompt_tokens=30, sent=2))
            assert view.counts


async def test_the_demand_is_not_known_while_a_pod_of_an_earlier_release_reports_none(monkeypatch):
    async with gateway_pod() as pod:
        pod.begins_with(said("chat"))
        async with reading(Slices(endpoint_slice("g-1")), pod.port, monkeypatch) as (reader, _):
            await reader.settled(60.0)
            view = reader.view(CHAT)
            assert view.known
            assert not view.counts


def test_a_service_without_requests_has_counters_of_zero():
    service = {"namespace": "team", "name": "chat", "held": 0, "in_flight": 0, "demand": {}}
    _, reports = read_line(json.dumps({"services": [service]}).encode(), 10.0, 5.0)
    assert reports[CHAT].demand == GatewayDemand()


@pytest.mark.parametrize("counter", [-1, 1.5, True, "1", None, 2**63])
def test_a_counter_that_is_none_ends_the_stream(counter):
    service = {"namespace": "team", "name": "chat", "held": 0, "in_flight": 0, "demand": {"a": {"arrived": counter}}}
    with pytest.raises(GatewayStreamError, match="is not a count"):
        read_line(json.dumps({"services": [service]}).encode(), 10.0, 5.0)


async def test_a_line_without_end_is_refused(monkeypatch):
    monkeypatch.setattr(gateway_lines, "MAX_LINE", 100)

    async def chunks():
        for _ in range(3):
            yield b"x" * 60

    with pytest.raises(GatewayStreamError, match="more than 100 bytes"):
        [one async for one in lines(chunks())]


@given(st.lists(st.binary(max_size=12).map(lambda one: one.replace(b"\n", b"")), max_size=6), st.integers(1, 9))
def test_lines_do_not_depend_on_how_a_stream_is_cut(parts, size):
    data = b"".join(one + b"\n" for one in parts)

    async def chunks():
        for start in range(0, len(data), size):
            yield data[start : start + size]

    async def collect():
        return [one async for one in lines(chunks())]

    assert asyncio.run(collect()) == [one for one in parts if one]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda one: (
            st.lists(one, max_size=3)
            | st.dictionaries(
                st.sampled_from(["services", "full", "name", "namespace", "held", "in_flight", "idle_s"]),
                one,
                max_size=5,
            )
        ),
        max_leaves=12,
    )
)
def test_any_json_is_a_state_or_an_error_of_the_stream(value):
    try:
        full, reports = read_line(json.dumps(value).encode(), 10.0, 5.0)
    except GatewayStreamError:
        return
    assert isinstance(full, bool)
    assert all(one.held >= 0 and one.in_flight >= 0 for one in reports.values())
