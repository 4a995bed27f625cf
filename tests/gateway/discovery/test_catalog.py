"""The catalog: which service a request is for, and what subscribers hear."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_base.manifest.keys import ObjectKey, ServiceKey
from inflight_gateway.discovery.catalog import Catalog, Change
from inflight_gateway.discovery.hosts import Hosts
from inflight_gateway.discovery.models import ModelClaims
from inflight_gateway.types import Endpoint, Refusal, ServiceConfig

A_CHAT, B_CHAT, A_CODE = ServiceKey("a", "chat"), ServiceKey("b", "chat"), ServiceKey("a", "code")
OWN = ServiceKey("inflight-system", "inflight-gateway")


def config(key, model=None):
    return ServiceConfig(key, f"uid-{key}", model or key.name)


def catalog(*configs, models_of=()):
    made = Catalog(Hosts(own=OWN, by_model=bool(models_of)))
    ModelClaims(made, models_of)
    made.update(services={one.key: one for one in configs}, complete=True)
    return made


@pytest.mark.parametrize(
    "host", ["chat.a", "chat.a:80", "CHAT.a.svc", "chat.a.svc.cluster.local", "chat.a.svc.cluster.local.:8080"]
)
def test_the_host_names_a_service(host):
    known = catalog(config(A_CHAT), config(B_CHAT), config(A_CODE), models_of=["a", "b"])
    assert known.resolve_host(host) == A_CHAT


@pytest.mark.parametrize("host", ["chat", "CODE:80", "inflight-gateway"])
@pytest.mark.parametrize("models_of", [(), ("a",)])
def test_a_host_without_a_namespace_is_refused_and_told_its_address(host, models_of):
    refusal = catalog(config(A_CHAT), config(A_CODE), models_of=models_of).resolve_host(host)
    assert (refusal.status, refusal.code) == (404, "service_not_found")
    assert f"http://{host.lower().removesuffix(':80')}.NAMESPACE.svc" in refusal.message


@pytest.mark.parametrize("host", ["chat.a.svc.other.domain", "chat.c", "chat.c.svc", "chat.c.svc.cluster.local"])
@pytest.mark.parametrize("models_of", [(), ("a", "b")])
def test_an_address_inside_a_cluster_never_goes_by_the_model(host, models_of):
    refusal = catalog(config(A_CHAT), config(B_CHAT), models_of=models_of).resolve_host(host)
    assert (refusal.status, refusal.code) == (404, "service_not_found")
    assert "http://NAME.NAMESPACE.svc" in refusal.message


OTHER_HOSTS = (
    "localhost:8080", "127.0.0.1", "[::1]:80", "10.0.0.1:80", "llm.example.com", "x.chat.a", "", ":80",
    "inflight-gateway.inflight-system", "inflight-gateway.inflight-system.svc.cluster.local:80",
)  # fmt: skip


@pytest.mark.parametrize("host", OTHER_HOSTS)
def test_other_hosts_go_by_the_model_only_where_the_installer_named_a_namespace(host):
    configs = config(A_CHAT, "llama"), config(B_CHAT, "qwen")
    refusal = catalog(*configs).resolve_host(host)
    assert (refusal.status, refusal.code) == (404, "service_not_found")
    known = catalog(*configs, models_of=["a"])
    assert known.resolve_host(host) is None
    assert known.resolve_model("llama") == A_CHAT
    assert known.resolve_model("qwen").code == "model_not_found"
    missing = known.resolve_model("")
    assert (missing.status, missing.code, missing.param) == (400, "model_missing", "model")
    assert known.model_services() == [config(A_CHAT, "llama")]


def test_prompts_of_a_deleted_service_go_to_no_service_of_the_same_name():
    known = catalog(config(A_CHAT, "llama"), config(B_CHAT, "llama"), models_of=["a", "b"])
    assert known.resolve_host("chat.a.svc") == A_CHAT
    known.update(services={A_CHAT: None}, outside={A_CHAT: True})
    for host in ("chat", "chat.a", "chat.a.svc"):
        assert isinstance(known.resolve_host(host), Refusal)
    known.update(outside={A_CHAT: False})
    for host in ("chat", "chat.a", "chat.a.svc"):
        assert isinstance(known.resolve_host(host), Refusal)
    assert known.resolve_host("chat.b") == B_CHAT


def test_a_model_never_moves_to_a_service_that_took_its_name():
    known = catalog(config(A_CHAT, "llama"), models_of=["a", "b"])
    assert known.resolve_model("llama") == A_CHAT
    known.update(services={B_CHAT: config(B_CHAT, "llama")})
    assert known.resolve_model("llama").code == "service_ambiguous"
    known.update(services={A_CHAT: None})
    refusal = known.resolve_model("llama")
    assert (refusal.status, refusal.code) == (404, "service_ambiguous")
    assert "a/chat" not in refusal.message
    assert "b/chat" not in refusal.message
    assert known.model_services() == []
    known.update(services={A_CHAT: config(A_CHAT, "llama")})
    assert known.resolve_model("llama").code == "service_ambiguous"
    known.update(services={B_CHAT: config(B_CHAT, "qwen")})
    assert known.resolve_model("llama") == A_CHAT


CLAIMS = st.lists(
    st.tuples(st.sampled_from([A_CHAT, B_CHAT, A_CODE]), st.sampled_from([None, "llama", "qwen"])), max_size=20
)


@given(CLAIMS)
def test_a_model_that_chose_a_service_never_chooses_another(steps):
    known, chosen = catalog(models_of=["a", "b"]), {}
    for key, model in steps:
        known.update(services={key: None if model is None else config(key, model)})
        for name in ("llama", "qwen"):
            found = known.resolve_model(name)
            if isinstance(found, ServiceKey):
                assert known.services[found].model == name
                assert chosen.setdefault(name, found) == found
        assert all(known.resolve_model(one.model) == one.key for one in known.model_services())


def test_a_model_does_not_move_to_a_service_that_comes_after_the_first_is_gone():
    known = catalog(config(A_CHAT, "llama"), models_of=["a", "b"])
    known.update(services={A_CHAT: None})
    assert known.resolve_model("llama").code == "model_not_found"
    known.update(services={B_CHAT: config(B_CHAT, "llama")})
    assert known.resolve_model("llama").code == "service_ambiguous"


def test_a_service_outside_the_named_namespaces_cannot_take_a_model():
    known = catalog(config(A_CHAT, "llama"), models_of=["a"])
    known.update(services={B_CHAT: config(B_CHAT, "llama")})
    assert known.resolve_model("llama") == A_CHAT


def test_no_service_has_a_model_before_all_are_known():
    known = Catalog(Hosts(by_model=True))
    ModelClaims(known, ["a", "b"])
    known.update(services={B_CHAT: config(B_CHAT, "llama")})
    known.update(services={A_CHAT: config(A_CHAT, "llama")})
    known.update(services={B_CHAT: None})
    known.update(complete=True)
    assert known.resolve_model("llama") == A_CHAT


def test_names_of_services_that_are_gone_are_remembered_up_to_a_bound(monkeypatch):
    monkeypatch.setattr("inflight_gateway.discovery.models.MAX_REMEMBERED", 2)
    known = catalog(config(A_CHAT, "m0"), models_of=["a"])
    for number in range(1, 5):
        known.update(services={A_CHAT: config(A_CHAT, f"m{number}")})
    assert list(known.models) == ["m2", "m3", "m4"]


def test_a_mirror_of_a_catalog_resolves_as_it_does():
    source, mirror = catalog(models_of=["a", "b"]), Catalog()
    mirror.update(hosts=source.hosts, complete=source.complete)

    def follow(change):
        mirror.update(
            services={key: source.services.get(key) for key in change.services},
            outside={key: key in source.outside for key in change.outside},
            models={model: source.models.get(model, ()) for model in change.models},
        )

    source.subscribe(follow)
    for services in (
        {A_CHAT: config(A_CHAT, "x")},
        {B_CHAT: config(B_CHAT, "x")},
        {A_CHAT: None},
        {A_CODE: config(A_CODE)},
    ):
        source.update(services=services, outside={A_CHAT: services.get(A_CHAT, 1) is None})
        for model in ("x", "code"):
            assert mirror.resolve_model(model) == source.resolve_model(model)
        for host in ("chat.a", "chat.b", "code.a", "chat", "localhost"):
            assert mirror.resolve_host(host) == source.resolve_host(host)


def test_endpoints_that_another_gateway_allows_name_the_service_where_its_host_names_none():
    known = catalog(config(A_CHAT, "llama"), config(A_CODE, "llama"), models_of=["a"])
    known.update(
        endpoints={A_CODE: [Endpoint("10.0.0.1:8000", "code-0")], A_CHAT: [Endpoint("10.0.0.2:8000", "chat-0")]}
    )
    assert known.resolve("localhost", "llama").code == "service_ambiguous"
    assert known.resolve("localhost", "llama", ["10.0.0.1:8000"]) == A_CODE
    assert known.resolve("chat", None, ["10.0.0.2:8000", "10.9.9.9:8000"]) == A_CHAT
    assert known.resolve("chat.a", None, ["10.0.0.1:8000"]) == A_CHAT
    assert known.resolve("localhost", "llama", ["10.0.0.1:8000", "10.0.0.2:8000"]).code == "service_ambiguous"


def test_an_unknown_model_is_not_found_and_other_services_are_not_named():
    refusal = catalog(config(ServiceKey("secret-team", "chat")), models_of=["secret-team"]).resolve_model("gpt")
    assert refusal.code == "model_not_found"
    assert "secret-team" not in refusal.message


def test_a_service_that_left_the_gateway_is_refused():
    known = catalog(config(B_CHAT, "llama"))
    known.update(outside={A_CHAT: True})
    refusal = known.resolve_host("chat.a.svc")
    assert (refusal.status, refusal.code) == (404, "service_not_behind_gateway")
    known.update(services={A_CHAT: config(A_CHAT)}, outside={A_CHAT: False})
    assert known.resolve_host("chat.a.svc") == A_CHAT


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
    for address in ("10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"):
        owners = [key for key in live if address in endpoints.get(key, ())]
        assert known.service_of(address) == (owners[0] if owners else None)
        assert (Endpoint(address, address) in known.by_endpoint()) == bool(owners)
    for key in live:
        assert known.resolve_host(f"{key.name}.{key.namespace}") == key


def test_subscribers_are_told_which_services_are_outside():
    catalog, seen, key = Catalog(), [], ServiceKey("team", "chat")
    catalog.subscribe(seen.append)
    for is_outside in (True, True, False, False):
        catalog.update(outside={key: is_outside})
    assert [change.outside for change in seen] == [{key}, {key}]
    assert key not in catalog.outside
