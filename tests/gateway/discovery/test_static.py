"""The file of `--static`: read whole or refused with the field's name, and read again when it changes."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from inflight_base.manifest.keys import ObjectKey, ServiceKey
from inflight_gateway.discovery import static
from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.discovery.static import StaticDiscovery, StaticFileError, read_file
from inflight_gateway.types import Endpoint, HoldBounds, RateLimits, ServiceClass, ServiceConfig, TenantConfig
from tests.gateway.waiting import until

CHAT = ServiceKey("default", "chat")
FULL = """
services:
- name: chat
  model: smollm2
  ttft_s: 1
  hold: {max_requests: 10}
  classes: [{name: interactive, weight: 4, ttft_s: 0.2}]
  tenants: [{name: acme, limits: {requests_per_minute: 6}}]
  api_keys_secret: keys
  apart: Auto
  endpoints: ["127.0.0.1:8000", {address: "[::1]:8001", pod: second, prefill: true}]
- {namespace: team, name: code}
secrets:
- {name: keys, data: {id-1: '{"tenant": "acme"}'}}
"""


def write(path, text):
    path.write_text(text)
    return path


def test_every_part_of_a_file(tmp_path):
    file = read_file(write(tmp_path / "static.yaml", FULL))
    assert file.services == {
        CHAT: ServiceConfig(
            CHAT,
            "default/chat",
            "smollm2",
            ttft_s=1.0,
            hold=HoldBounds(10),
            classes=(ServiceClass("interactive", 4.0, 0, 0.2),),
            tenants=(TenantConfig("acme", limits=RateLimits(6)),),
            api_keys_secret="keys",
            apart="Auto",
        ),
        ServiceKey("team", "code"): ServiceConfig(ServiceKey("team", "code"), "team/code", "code"),
    }
    assert file.endpoints[CHAT] == (Endpoint("127.0.0.1:8000", ""), Endpoint("[::1]:8001", "second", prefill=True))
    assert file.secrets == {ObjectKey("default", "keys"): {"id-1": b'{"tenant": "acme"}'}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("services: [{name: chat, hold: {max_requests: many}}]", r"services\[0\].hold.max_requests"),
        ("services: [{name: chat, hold: {maxRequests: 1}}]", r"services\[0\].hold.maxRequests is not known"),
        (
            "services: [{name: chat, tenants: [{name: a, limits: {rpm: 1}}]}]",
            r"services\[0\].tenants\[0\].limits.rpm is not known",
        ),
        ("services: [{name: chat, modell: x}]", r"services\[0\].modell is not known"),
        ("services: [{model: x}]", r"services\[0\]: name and namespace must be texts"),
        ("services: [{name: chat, key: x}]", r"services\[0\].key is not known"),
        ("services: [{name: chat}, {name: chat}]", r"services\[1\]: there is another service default/chat"),
        ("services: [{name: chat, endpoints: [localhost:80]}]", r"services\[0\].endpoints\[0\]: 'localhost:80' is not"),
        ("services: [{name: chat, endpoints: ['127.0.0.1']}]", r"'127.0.0.1' is not IP:PORT"),
        ("services: [{name: chat, endpoints: ['::1:80']}]", r"'::1:80' is not IP:PORT"),
        ("services: [{name: chat, endpoints: [{pod: x}]}]", r"services\[0\].endpoints\[0\]"),
        ("services: [{name: chat, endpoints: [{address: 1, por: 2}]}]", r"endpoints\[0\]: por is not known"),
        ("services: chat", "services must be a list"),
        ("services: [chat]", r"services\[0\] must be an object"),
        ("peers: [{name: a, address: localhost:80}]", r"peers\[0\]: 'localhost:80' is not IP:PORT"),
        ("peers: [{address: '127.0.0.1:80'}]", r"peers\[0\].name"),
        ("peers: ['127.0.0.1:80']", r"peers\[0\] must be an object"),
        ("servces: []", "servces is not known; there is peers, secrets, services"),
        ("secrets: [{name: keys, data: {a: 5}}]", r"secrets\[0\].data"),
        ("- 1", "the file must be an object"),
        ("a: [", "expected"),
    ],
)
def test_an_error_names_the_file_and_the_field(tmp_path, text, message):
    with pytest.raises(StaticFileError, match=message) as caught:
        read_file(write(tmp_path / "static.yaml", text))
    assert "static.yaml" in str(caught.value)


def test_a_missing_file_is_an_error_at_start(tmp_path):
    with pytest.raises(StaticFileError, match="No such file"):
        StaticDiscovery(tmp_path / "none.yaml", Catalog(), list)


@asynccontextmanager
async def running(discovery):
    task = asyncio.create_task(discovery.run())
    yield
    task.cancel()


async def test_a_changed_file_takes_effect_and_one_with_errors_changes_nothing(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(static, "POLL_SECONDS", 0.01)
    path, catalog = write(tmp_path / "static.yaml", FULL), Catalog()
    discovery = StaticDiscovery(path, catalog, list)
    assert discovery.unready() == []
    assert len(catalog.endpoints_of(CHAT)) == 2
    async with running(discovery):
        write(path, "services: [{name: chat, endpoints: [1]}]")
        await until(lambda: "what it said before stays in force" in caplog.text)
        assert len(catalog.endpoints_of(CHAT)) == 2
        assert "endpoints[0]" in discovery.problems()[0]
        new = write(tmp_path / "new.yaml", "services: [{name: chat, endpoints: ['127.0.0.1:9']}]")
        new.replace(path)
        await until(lambda: catalog.endpoints_of(CHAT) == (Endpoint("127.0.0.1:9", ""),))
        await until(lambda: not discovery.problems())
        assert set(catalog.services) == {CHAT}
        assert catalog.secret(ObjectKey("default", "keys")) is None
