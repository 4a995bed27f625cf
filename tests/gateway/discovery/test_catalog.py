"""The catalog: which service a request is for, and what subscribers hear."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_base.manifest.keys import ObjectKey, ServiceKey
from inflight_gateway.discovery.catalog import Catalog, Change
from inflight_gateway.types import Endpoint, Refusal, ServiceConfig

A_CHAT, B_CHAT, A_CODE = ServiceKey("a", "chat"), ServiceKey("b", "chat"), ServiceKey("a", "code")


def config(key, model=None):
    return ServiceConfig(key, f"uid-{key}", model or key.name)


def catalog(*configs):
    made = Catalog()
    made.update(services={one.key: one for one in configs})
    return made


@pytest.mark.parametrize(
    "host",
    [
        "chat.a",
        "chat.a:80",
        "CHAT.a.svc",
        "chat.a.svc.cluster.local",
        "chat.a.svc.cluster.local.:8080",
        "code",
    ],
)
def test_the_host_names_a_service(host):
    found = catalog(config(A_CHAT), config(B_CHAT), config(A_CODE)).resolve(host, "any model")
    assert found == (A_CODE if host == "code" else A_CHAT)


@pytest.mark.parametrize("host", ["chat.a.svc.other.domain", "chat.a.pod", "x.chat.a", "chat.c", "[::1]:80", "", ":80"])
def test_other_hosts_name_none(host):
    refusal = catalog(config(A_CHAT), config(B_CHAT)).resolve(host)
    assert isinstance(refusal, Refusal)
    assert (refusal.status, refusal.code) == (404, "service_not_found")
    assert "http://NAME.NAMESPACE.svc" in refusal.message


def test_any_host_works_with_a_model_that_one_service_serves():
    known = catalog(config(A_CHAT, "llama"), config(A_CODE, "qwen"))
    assert known.resolve("localhost:8080", "qwen") == A_CODE
    assert known.resolve("127.0.0.1", "llama") == A_CHAT


def test_the_host_counts_more_than_the_model():
    assert catalog(config(A_CHAT, "llama"), config(A_CODE, "qwen")).resolve("chat.a", "qwen") == A_CHAT


def test_a_short_name_in_two_namespaces_is_refused_unless_the_model_tells_them_apart():
    known = catalog(config(A_CHAT, "llama"), config(B_CHAT, "qwen"))
    assert known.resolve("chat", "qwen") == B_CHAT
    refusal = known.resolve("chat", "gemma")
    assert isinstance(refusal, Refusal)
    assert (refusal.status, refusal.code) == (404, "service_ambiguous")
    assert "2 services" in refusal.message


def test_a_model_of_two_services_is_refused_unless_another_gateway_allows_endpoints_of_one():
    known = catalog(config(A_CHAT, "llama"), config(A_CODE, "llama"))
    known.update(
        endpoints={A_CODE: [Endpoint("10.0.0.1:8000", "code-0")], A_CHAT: [Endpoint("10.0.0.2:8000", "chat-0")]}
    )
    assert known.resolve("localhost", "llama").code == "service_ambiguous"
    assert known.resolve("localhost", "llama", ["10.0.0.1:8000"]) == A_CODE
    assert known.resolve("localhost", None, ["10.0.0.2:8000"]) == A_CHAT
    assert known.resolve("localhost", "llama", ["10.9.9.9:8000"]).code == "service_ambiguous"


def test_an_unknown_model_is_not_found_and_other_services_are_not_named():
    refusal = catalog(config(ServiceKey("secret-team", "chat"))).resolve("localhost", "gpt")
    assert refusal.code == "model_not_found"
    assert "secret-team" not in refusal.message


def test_a_service_that_left_the_gateway_is_refused_and_its_requests_go_nowhere_else():
    known = catalog(config(B_CHAT, "llama"))
    known.update(outside={A_CHAT: True})
    refusal = known.resolve("chat.a.svc", "llama")
    assert (refusal.status, refusal.code) == (404, "service_not_behind_gateway")
    assert known.resolve("localhost", "llama") == B_CHAT
    known.update(services={A_CHAT: config(A_CHAT)}, outside={A_CHAT: False})
    assert known.resolve("chat.a.svc", "llama") == A_CHAT


def test_the_short_name_is_a_host_of_a_service_while_no_other_has_it():
    known = catalog(config(A_CHAT))
    assert known.hosts(A_CHAT) == ("chat", "chat.a", "chat.a.svc", "chat.a.svc.cluster.local")
    known.update(services={B_CHAT: config(B_CHAT)})
    assert known.hosts(A_CHAT) == ("chat.a", "chat.a.svc", "chat.a.svc.cluster.local")


def test_subscribers_hear_once_of_what_really_changed():
    known, heard = Catalog(), []
    unsubscribe = known.subscribe(heard.append)
    endpoint = Endpoint("10.0.0.1:8000", "chat-0")
    update = {
        "services": {A_CHAT: config(A_CHAT), A_CODE: None},
        "endpoints": {A_CHAT: [endpoint]},
        "secrets": {ObjectKey("a", "keys"): {"id": b"{}"}},
    }
    known.update(**update)
    known.update(**update)
    assert heard == [Change(frozenset({A_CHAT}), frozenset({A_CHAT}), frozenset({ObjectKey("a", "keys")}))]
    known.update(endpoints={A_CHAT: []})
    assert heard[1:] == [Change(endpoints=frozenset({A_CHAT}))]
    unsubscribe()
    known.update(services={A_CHAT: None})
    assert len(heard) == 2


def test_a_subscriber_that_fails_does_not_keep_a_change_from_the_others(caplog):
    known, heard = Catalog(), []

    def fails(change):
        raise RuntimeError("a fault of a subscriber")

    known.subscribe(fails)
    known.subscribe(heard.append)
    known.update(services={A_CHAT: config(A_CHAT)})
    assert heard == [Change(services=frozenset({A_CHAT}))]
    assert "a fault of a subscriber" in caplog.text


KEYS = st.builds(ServiceKey, st.sampled_from("ab"), st.sampled_from(["chat", "code"]))
ADDRESSES = st.sampled_from(["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("service"), KEYS, st.sampled_from([None, "llama", "qwen"])),
        st.tuples(st.just("endpoints"), KEYS, st.frozensets(ADDRESSES, max_size=2)),
    ),
    max_size=20,
)


@given(STEPS)
def test_indexes_agree_with_the_content_after_any_updates(steps):
    known, services, endpoints = Catalog(), {}, {}
    for kind, key, value in steps:
        if kind == "service":
            known.update(services={key: None if value is None else config(key, value)})
            services[key] = value
        else:
            # One pod address belongs to one service: the newest.
            for other, addresses in tuple(endpoints.items()):
                if other != key and addresses & value:
                    endpoints[other] = addresses - value
                    known.update(endpoints={other: [Endpoint(one, one) for one in endpoints[other]]})
            known.update(endpoints={key: [Endpoint(one, one) for one in value]})
            endpoints[key] = value
    live = {key: model for key, model in services.items() if model is not None}
    assert set(known.services) == set(live)
    for model in ("llama", "qwen"):
        serving = [key for key, named in live.items() if named == model]
        found = known.resolve("localhost", model)
        assert found == serving[0] if len(serving) == 1 else isinstance(found, Refusal)
    for address in ("10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"):
        owners = [key for key in live if address in endpoints.get(key, ())]
        assert known.service_of(address) == (owners[0] if owners else None)
        assert (address in known.addresses()) == bool(owners)
    for key in live:
        for host in known.hosts(key):
            assert known.resolve(host) == key


def test_subscribers_are_told_which_services_are_outside():
    catalog, seen, key = Catalog(), [], ServiceKey("team", "chat")
    catalog.subscribe(seen.append)
    for is_outside in (True, True, False, False):
        catalog.update(outside={key: is_outside})
    assert [change.outside for change in seen] == [{key}, {key}]
    assert key not in catalog.outside
