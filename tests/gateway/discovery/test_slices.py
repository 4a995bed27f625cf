"""Endpoints from EndpointSlices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_base.manifest.keys import ObjectKey, ServiceKey
from inflight_gateway.discovery.slices import Slices, gateway_pods, ready_endpoints
from inflight_gateway.types import Endpoint

CHAT = ServiceKey("team", "chat")
HTTP = ({"name": "http", "port": 8000, "protocol": "TCP"},)


def entry(ip, pod=None, **conditions):
    return {"addresses": [ip], "conditions": conditions, **({"targetRef": {"kind": "Pod", "name": pod}} if pod else {})}


MANAGER = "endpointslice.kubernetes.io/managed-by"


def engine_slice(*entries, name="chat-engines-x", of="chat-engines", ports=HTTP, family="IPv4", **labels):
    labels = {
        "inflight.dev/service": "chat",
        "kubernetes.io/service-name": of,
        MANAGER: "endpointslice-controller.k8s.io",
        **labels,
    }
    owner = {"apiVersion": "v1", "kind": "Service", "name": of, "uid": "u", "controller": True}
    return {
        "metadata": {"namespace": "team", "name": name, "labels": labels, "ownerReferences": [owner]},
        "addressType": family,
        "ports": list(ports),
        "endpoints": list(entries),
    }


@pytest.mark.parametrize(
    ("conditions", "counts"),
    [
        ({}, True),
        ({"ready": None, "serving": None, "terminating": None}, True),
        ({"ready": True, "serving": True, "terminating": False}, True),
        ({"ready": False, "serving": True, "terminating": True}, False),
        ({"ready": True, "serving": True, "terminating": True}, False),
        ({"ready": True, "serving": False}, False),
        ({"ready": False}, False),
    ],
)
def test_only_pods_that_take_new_requests_are_endpoints(conditions, counts):
    found = ready_endpoints(engine_slice(entry("10.0.0.1", "chat-0", **conditions)))
    assert found == ((Endpoint("10.0.0.1:8000", "chat-0"),) if counts else ())


@pytest.mark.parametrize(
    ("ports", "port"),
    [
        (({"name": "admin", "port": 8001}, {"name": "http", "port": 8000}), 8000),
        (({"name": "", "port": 9000},), 9000),
        (({"name": "admin", "port": 8001}, {"name": "other", "port": 8002}), None),
        (({"name": "http", "port": None},), None),
        ((), None),
    ],
)
def test_the_port_is_the_one_called_http_or_the_only_one(ports, port):
    found = ready_endpoints(engine_slice(entry("10.0.0.1", "chat-0"), ports=ports))
    assert [endpoint.address for endpoint in found] == ([] if port is None else [f"10.0.0.1:{port}"])


def test_slices_of_a_service_are_joined_and_go_one_by_one():
    slices = Slices()
    first, second = ObjectKey("team", "one"), ObjectKey("team", "two")
    assert slices.take({first: engine_slice(entry("10.0.0.1", "chat-0"))}) == {
        CHAT: (Endpoint("10.0.0.1:8000", "chat-0"),)
    }
    # For a while a pod may be in two slices; with two address families it always is.
    both = slices.take({second: engine_slice(entry("10.0.0.1", "chat-0"), entry("10.0.0.2", "chat-1"))})
    assert both == {CHAT: (Endpoint("10.0.0.1:8000", "chat-0"), Endpoint("10.0.0.2:8000", "chat-1"))}
    assert slices.take({first: None}) == both
    assert slices.take({second: None}) == {CHAT: ()}
    assert slices.take({second: None}) == {}


def test_a_pod_with_two_address_families_is_one_endpoint():
    of_both = {
        ObjectKey("team", "a"): engine_slice(entry("fd00::1", "chat-0"), family="IPv6"),
        ObjectKey("team", "b"): engine_slice(entry("10.0.0.1", "chat-0")),
    }
    assert Slices().take(of_both) == {CHAT: (Endpoint("10.0.0.1:8000", "chat-0"),)}


def test_engines_of_the_prefill_set_are_endpoints_of_the_service_that_they_compute_for():
    apart = {"inflight.dev/service": "chat-prefill", "inflight.dev/prefill-of": "chat"}
    own, prefill = (
        engine_slice(entry("10.0.0.1", "chat-0")),
        engine_slice(entry("10.0.0.2", "chat-prefill-0"), name="p", of="chat-prefill-engines", **apart),
    )
    slices = Slices()
    found = slices.take({ObjectKey("team", "a"): own, ObjectKey("team", "p"): prefill})
    assert found == {
        CHAT: (Endpoint("10.0.0.1:8000", "chat-0"), Endpoint("10.0.0.2:8000", "chat-prefill-0", prefill=True))
    }
    assert slices.take({ObjectKey("team", "p"): None}) == {CHAT: (Endpoint("10.0.0.1:8000", "chat-0"),)}


@pytest.mark.parametrize("name", ["other", "chat-prefill-2", "other-prefill"])
def test_engines_of_another_service_do_not_compute_for_it(name):
    labels = {"inflight.dev/service": name, "inflight.dev/prefill-of": "chat"}
    forged = engine_slice(entry("10.0.0.9", "x-0"), of=f"{name}-engines", **labels)
    assert Slices().take({ObjectKey("team", "p"): forged}) == {}


def test_slices_that_the_clients_service_left_behind_are_no_engines():
    left_behind = engine_slice(entry("10.0.0.9", "long-gone"), of="chat")
    assert Slices().take({ObjectKey("team", "chat-abc"): left_behind}) == {}


def test_the_gateways_pods_are_those_that_serve_by_name_with_one_address_each():
    """Their Service publishes addresses that are not ready: `ready` is true for all."""
    sixes = engine_slice(
        entry("fd00::1", "gateway-1"),
        entry("fd00::2", "gateway-2", serving=False),
        entry("fd00::3", "gateway-3", terminating=True),
        entry("::1", "gateway-4"),
        family="IPv6",
    )
    fours = engine_slice(entry("10.0.0.1", "gateway-1"), entry("10.0.0.5", "gateway-0"))
    assert gateway_pods([sixes, fours], 9005) == (("gateway-0", "10.0.0.5:9005"), ("gateway-1", "10.0.0.1:9005"))
    assert gateway_pods([sixes], 9005) == (("gateway-1", "[fd00::1]:9005"),)


def test_a_slice_of_names_is_ignored_and_logged_once_and_other_services_scale_on(caplog):
    slices, named = Slices(), ObjectKey("team", "named")
    names = engine_slice(entry("engines.example.com", "chat-0"), family="FQDN")
    assert slices.take({named: names}) == {}
    other = engine_slice(entry("10.0.0.1", "other-0"), of="other-engines", **{"inflight.dev/service": "other"})
    scaled = slices.take({named: names, ObjectKey("team", "other"): other})
    assert scaled == {ServiceKey("team", "other"): (Endpoint("10.0.0.1:8000", "other-0"),)}
    assert len(caplog.records) == 1
    assert "team/named: ignored: its addressType is 'FQDN'" in caplog.text


@pytest.mark.parametrize(
    ("family", "ip"),
    [
        *(("IPv4", ip) for ip in ("169.254.169.254", "127.0.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255")),
        *(("IPv4", ip) for ip in ("168.63.129.16", "100.100.100.200", "10.0.0.1:80", "10.1", "fd00::1", "example.com")),
        *(("IPv6", ip) for ip in ("::1", "::", "fe80::1", "fe80::1%eth0", "fd00::1%lo", "ff02::1", "10.0.0.1")),
        *(("IPv6", ip) for ip in ("::ffff:169.254.169.254", "::169.254.169.254", "64:ff9b::a9fe:a9fe")),
        *(("IPv6", ip) for ip in ("2002:a9fe:a9fe::1", "2001:0:1::1", "fd00:ec2::254", "fd20:ce::254")),
    ],
)
def test_addresses_that_are_not_of_pods_are_left_out_and_logged(family, ip, caplog):
    good = {"IPv4": "10.0.0.2", "IPv6": "fd00::2"}[family]
    mixed = engine_slice(entry(ip, "bad"), entry(good, "good"), family=family)
    [[endpoint]] = Slices().take({ObjectKey("team", "x"): mixed}).values()
    assert endpoint.pod == "good"
    assert ip in caplog.text


@pytest.mark.parametrize(
    "address", ["10.0.0.1", "172.16.0.1", "192.168.0.1", "100.64.0.1", "34.118.224.1", "192.0.2.1"]
)
def test_pods_may_have_any_other_address(address):
    [[endpoint]] = Slices().take({ObjectKey("team", "x"): engine_slice(entry(address, "pod"))}).values()
    assert endpoint.address == f"{address}:8000"


def test_slices_that_another_controller_made_or_another_object_owns_are_ignored(caplog):
    by_hand = engine_slice(entry("10.0.0.9", "x"), **{MANAGER: "me"})
    of_another = engine_slice(entry("10.0.0.9", "x"))
    of_another["metadata"]["ownerReferences"][0]["name"] = "other-engines"
    no_owner = engine_slice(entry("10.0.0.9", "x"))
    del no_owner["metadata"]["ownerReferences"]
    slices, key = Slices(), ObjectKey("team", "x")
    for one in (by_hand, of_another, no_owner):
        assert slices.take({key: one}) == {}
    assert len(caplog.records) == 2
    assert slices.take({key: engine_slice(entry("10.0.0.1", "x"))}) == {CHAT: (Endpoint("10.0.0.1:8000", "x"),)}
    assert slices.take({key: by_hand}) == {CHAT: ()}


ENTRIES = st.builds(
    lambda pod, takes: entry(f"10.0.0.{pod}", f"chat-{pod}", ready=takes), st.integers(1, 5), st.booleans()
)
SERVICES = st.sampled_from(["chat-engines", "another-service"])
MANIFESTS = st.none() | st.builds(
    lambda entries, of: engine_slice(*entries, of=of), st.lists(ENTRIES, max_size=4), SERVICES
)
KEYS = st.builds(ObjectKey, st.just("team"), st.sampled_from("abc"))
CHANGES = st.lists(st.dictionaries(KEYS, MANIFESTS, min_size=1))


@given(CHANGES)
def test_after_any_changes_the_endpoints_are_those_of_the_slices_there_are(changes):
    slices, live, known = Slices(), {}, ()
    for change in changes:
        live.update(change)
        known = slices.take(change).get(CHAT, known)
        fresh = Slices().take({key: manifest for key, manifest in live.items() if manifest is not None}).get(CHAT, ())
        assert set(known) == set(fresh)
        assert len({endpoint.pod for endpoint in known}) == len(known)
