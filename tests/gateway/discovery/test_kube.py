"""Discovery against a fake Kubernetes API: what comes, changes and goes, and what stays while the API is away."""

import asyncio
from base64 import b64encode
from contextlib import asynccontextmanager

import pytest

from inflight_base.kube import reflector as reflector_module
from inflight_base.manifest.keys import ObjectKey, ServiceKey
from inflight_gateway.discovery import kube as kube_module
from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.discovery.kube import GatewayPods, KubeDiscovery
from inflight_gateway.discovery.service_config import read_service
from inflight_gateway.types import Endpoint
from tests.base.kube.fake_api import fake_api
from tests.gateway.waiting import until

SERVICES = "/apis/inflight.dev/v1alpha1/inferenceservices"
SLICES = "/apis/discovery.k8s.io/v1/endpointslices"
SECRETS = "/api/v1/secrets"
CHAT = ServiceKey("team", "chat")
KEYS = ObjectKey("team", "keys")


def service(name="chat", enabled=True, namespace="team", **gateway):
    spec = {"model": {"source": "builtin://smollm2"}, "gateway": {"enabled": enabled, **gateway}}
    return {"metadata": {"namespace": namespace, "name": name, "uid": f"uid-{name}"}, "spec": spec}


def engines(*ips, name="chat", namespace="team"):
    labels = {
        "inflight.dev/service": name,
        "kubernetes.io/service-name": f"{name}-engines",
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
    }
    owner = {"apiVersion": "v1", "kind": "Service", "name": f"{name}-engines", "uid": "u"}
    metadata = {"namespace": namespace, "name": f"{name}-engines-x", "labels": labels, "ownerReferences": [owner]}
    return {
        "metadata": metadata,
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8000}],
        "endpoints": [
            {"addresses": [ip], "conditions": {"ready": True}, "targetRef": {"name": f"{name}-{ip}"}} for ip in ips
        ],
    }


def secret(name="keys", **data):
    encoded = {key: b64encode(value.encode()).decode() for key, value in data.items()}
    return {"metadata": {"namespace": "team", "name": name}, "data": encoded}


def addresses(catalog, key=CHAT):
    return [endpoint.address for endpoint in catalog.endpoints_of(key)]


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(reflector_module, "FIRST_BACK_OFF", 0.01)
    monkeypatch.setattr(reflector_module, "LONGEST_BACK_OFF", 0.05)


@pytest.fixture
async def fake():
    async with fake_api() as one:
        yield one


@asynccontextmanager
async def discovering(fake, **settings):
    catalog = Catalog()
    discovery = KubeDiscovery(fake.api, catalog, **settings)
    task = asyncio.create_task(discovery.run())
    yield catalog, discovery
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_services_and_engines_that_are_there_that_come_change_and_go(fake):
    await fake.put(SERVICES, service())
    await fake.put(SERVICES, service("plain", enabled=False))
    await fake.put(SLICES, engines("10.0.0.1"))
    async with discovering(fake) as (catalog, discovery):
        assert "has not been listed yet" in discovery.unready()[0]
        await until(lambda: not discovery.unready())
        assert set(catalog.services) == {CHAT}
        assert catalog.endpoints_of(CHAT) == (Endpoint("10.0.0.1:8000", "chat-10.0.0.1"),)
        await fake.put(SLICES, engines("10.0.0.1", "10.0.0.2"))
        await until(lambda: addresses(catalog) == ["10.0.0.1:8000", "10.0.0.2:8000"])
        await fake.put(SERVICES, service(maxAttempts=7))
        await until(lambda: catalog.services[CHAT].max_attempts == 7)
        await fake.put(SERVICES, service(enabled=False, maxAttempts=5))
        await until(lambda: catalog.services[CHAT].max_attempts == 5)
        assert addresses(catalog) == ["10.0.0.1:8000", "10.0.0.2:8000"], "clients with open connections are not lost"
        await fake.put(SLICES, engines())
        await until(lambda: not catalog.endpoints)
        assert set(catalog.services) == {CHAT}
        await fake.delete(SLICES, "team", "chat-engines-x")
        await until(lambda: not catalog.services)
        assert catalog.resolve("chat.team").code == "service_not_behind_gateway"
        await fake.put(SLICES, engines("10.0.0.1"))
        await until(lambda: set(catalog.services) == {CHAT})
        await fake.delete(SLICES, "team", "chat-engines-x")
        await until(lambda: not catalog.services)
        await fake.put(SERVICES, service("plain"))
        await until(lambda: set(catalog.services) == {ServiceKey("team", "plain")})
        await fake.delete(SERVICES, "team", "plain")
        await until(lambda: not catalog.services and not catalog.endpoints)
        assert catalog.resolve("plain.team").code == "service_not_found"


async def test_services_of_another_class_are_unknown(fake):
    other = service("other")
    other["spec"]["className"] = "second"
    await fake.put(SERVICES, service())
    await fake.put(SERVICES, other)
    for class_name, served in (("inflight", "chat"), ("second", "other")):
        async with discovering(fake, class_name=class_name) as (catalog, discovery):
            await until(lambda discovery=discovery: not discovery.unready())
            assert [key.name for key in catalog.services] == [served]


async def test_everything_stays_while_the_api_is_away_and_what_changed_meanwhile_comes_after(fake):
    await fake.put(SERVICES, service())
    await fake.put(SLICES, engines("10.0.0.1"))
    async with discovering(fake) as (catalog, discovery):
        await until(lambda: addresses(catalog) == ["10.0.0.1:8000"])
        await fake.stop()
        await until(lambda: len(discovery.problems()) == 2)
        assert "does not answer" in discovery.problems()[0]
        assert discovery.unready() == []
        await fake.put(SLICES, engines("10.0.0.9"))
        assert addresses(catalog) == ["10.0.0.1:8000"]
        lists = len([1 for _, query in fake.requests if "watch" not in query])
        await fake.start()
        await until(lambda: addresses(catalog) == ["10.0.0.9:8000"])
        assert len([1 for _, query in fake.requests if "watch" not in query]) == lists, "watches continue"


async def test_a_watch_that_cannot_continue_lists_anew_and_finds_what_was_deleted_unseen(fake):
    await fake.put(SERVICES, service())
    await fake.put(SERVICES, service("code"))
    async with discovering(fake) as (catalog, _):
        await until(lambda: len(catalog.services) == 2)
        await fake.stop()
        await fake.delete(SERVICES, "team", "code")
        fake.forget_events()
        await fake.start()
        await until(lambda: set(catalog.services) == {CHAT})
        await fake.put(SERVICES, service("new"))
        await until(lambda: ServiceKey("team", "new") in catalog.services)


async def test_a_watch_continues_from_the_last_bookmark(fake):
    await fake.put(SERVICES, service())
    async with discovering(fake) as (_, discovery):
        await until(lambda: not discovery.unready() and len(fake.requests) == 4)
        await fake.bookmark()
        version = fake.version
        await asyncio.sleep(0.1)
        await fake.stop()
        await fake.start()
        await until(lambda: len([1 for _, query in fake.requests if query.get("resourceVersion") == str(version)]) >= 2)


async def test_a_gateway_that_starts_while_the_api_is_away_is_not_ready_and_says_why(fake):
    await fake.put(SERVICES, service())
    await fake.stop()
    async with discovering(fake) as (catalog, discovery):
        await until(lambda: any("does not answer" in reason for reason in discovery.unready()))
        assert not catalog.services
        await fake.start()
        await until(lambda: not discovery.unready())
        assert set(catalog.services) == {CHAT}


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 504])
async def test_a_refusal_changes_nothing_and_is_tried_again(fake, status):
    await fake.put(SERVICES, service())
    async with discovering(fake) as (catalog, discovery):
        await until(lambda: not discovery.unready())
        fake.refuse = status
        await fake.stop()
        await fake.start()
        await until(lambda: any(f"not now (HTTP {status})" in problem for problem in discovery.problems()))
        assert set(catalog.services) == {CHAT}
        fake.refuse = None
        await until(lambda: not discovery.problems())


async def test_only_secrets_that_services_name_are_watched(fake):
    await fake.put(SECRETS, secret(a="1"))
    await fake.put(SECRETS, secret("other", a="1"))
    await fake.put(SERVICES, service(auth={"apiKeysSecret": "keys"}))
    async with discovering(fake) as (catalog, _):
        await until(lambda: catalog.secret(KEYS) == {"a": b"1"})
        await fake.put(SECRETS, secret(a="1", b="2"))
        await until(lambda: catalog.secret(KEYS) == {"a": b"1", "b": b"2"})
        await fake.delete(SECRETS, "team", "keys")
        await until(lambda: catalog.secret(KEYS) is None)
        await fake.put(SECRETS, secret(c="3"))
        await until(lambda: catalog.secret(KEYS) == {"c": b"3"})
        await fake.put(SERVICES, service(auth={"apiKeysSecret": "other"}))
        await until(lambda: catalog.secret(ObjectKey("team", "other")) == {"a": b"1"})
        assert catalog.secret(KEYS) is None
        asked = [query for path, query in fake.requests if "secrets" in path]
        assert {query["fieldSelector"] for query in asked} == {"metadata.name=keys", "metadata.name=other"}


async def test_a_secret_that_may_not_be_read_does_not_keep_the_gateway_from_being_ready(fake):
    await fake.put(SERVICES, service(auth={"apiKeysSecret": "keys"}))
    async with discovering(fake) as (catalog, discovery):
        await until(lambda: not discovery.unready())
        assert catalog.secret(KEYS) is None


async def test_a_service_whose_keys_cannot_be_read_is_closed_and_the_log_says_so_once(fake, caplog):
    await fake.put(SERVICES, service(auth={}))
    async with discovering(fake) as (catalog, discovery):
        await until(lambda: not discovery.unready())
        assert not catalog.services
        await fake.put(SERVICES, service(auth={}))
        await fake.put(SERVICES, service("other"))
        await until(lambda: catalog.services)
    assert caplog.text.count("must name a Secret in apiKeysSecret") == 1


async def test_only_the_namespaces_that_are_given_are_looked_at(fake):
    for namespace in ("team", "other", "third"):
        await fake.put(SERVICES, service(namespace=namespace))
        await fake.put(SLICES, engines("10.0.0.1", namespace=namespace))
    async with discovering(fake, namespaces=["team", "third"]) as (catalog, discovery):
        await until(lambda: not discovery.unready())
        assert {key.namespace for key in catalog.services} == {key.namespace for key in catalog.endpoints}
        assert {key.namespace for key in catalog.services} == {"team", "third"}


async def test_lists_of_many_pages_are_read_whole(fake):
    fake.page = 3
    for number in range(10):
        await fake.put(SERVICES, service(f"chat-{number}"))
    async with discovering(fake) as (catalog, discovery):
        await until(lambda: not discovery.unready())
        assert len(catalog.services) == 10


async def test_a_fault_of_a_reader_does_not_end_the_watch(fake, caplog, monkeypatch):
    await fake.put(SERVICES, service())
    faults = [RuntimeError("a fault of ours")]

    def read(manifest):
        if faults:
            raise faults.pop()
        return read_service(manifest)

    monkeypatch.setattr(kube_module, "read_service", read)
    async with discovering(fake) as (catalog, discovery):
        await until(lambda: set(catalog.services) == {CHAT})
        await until(lambda: not discovery.unready() and not discovery.problems())
        await fake.put(SERVICES, service("later"))
        await until(lambda: len(catalog.services) == 2)
    assert "a fault of ours" in caplog.text


async def test_watches_that_end_at_once_do_not_become_a_storm(fake):
    fake.ends_watches = True
    async with discovering(fake) as (catalog, discovery):
        await until(lambda: not discovery.unready())
        await asyncio.sleep(1.0)
        await fake.put(SERVICES, service())
        await until(lambda: set(catalog.services) == {CHAT})
    assert len(fake.requests) < 20


async def test_the_ready_pods_of_the_gateways_own_service_are_told(fake):
    def pods(*ips):
        return {
            "metadata": {
                "namespace": "system", "name": "gateway-x", "labels": {"kubernetes.io/service-name": "inflight-gateway"}
            },
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8080}],
            "endpoints": [{"addresses": [ip], "targetRef": {"name": f"gateway-{ip}"}} for ip in ips],
        }  # fmt: skip

    await fake.put(SLICES, pods("10.0.0.1", "10.0.0.2"))
    heard = []
    async with discovering(fake, pods=GatewayPods("system", "inflight-gateway", 9005), on_pods=heard.append) as found:
        await until(lambda: not found[1].unready())
        assert [one.address for one in heard[-1]] == ["10.0.0.1:9005", "10.0.0.2:9005"]
        await fake.put(SLICES, pods("10.0.0.2", "10.0.0.3"))
        await until(lambda: [one.name for one in heard[-1]] == ["gateway-10.0.0.2", "gateway-10.0.0.3"])
