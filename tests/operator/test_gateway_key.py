"""The key that gateway and operator share."""

import base64
import hashlib
import hmac

import pytest

from inflight_base.manifest.keys import ServiceKey
from inflight_operator.keys import (
    COMMON_GATEWAY_KEY_SECRET_NAME,
    GatewayKey,
    LiveGatewayKey,
    UnusableKeyError,
)
from tests.operator.test_admin_key import Secrets


def test_a_tenant_key_is_derived_from_namespace_name_and_uid():
    digest = hmac.new(b"k" * 32, b"tenant/team/chat/u-1", hashlib.sha256).digest()
    expected = base64.urlsafe_b64encode(digest).decode().rstrip("=")
    assert GatewayKey(b"k" * 32).tenant_keys(ServiceKey("team", "chat"), "u-1") == (expected,)


def test_a_key_does_not_show_in_its_representation():
    assert "kkk" not in repr(GatewayKey(b"k" * 32, b"k" * 32))


async def test_the_previous_key_is_read_beside_the_current_one_and_its_tenant_keys_stay():
    store = Secrets()
    key = LiveGatewayKey(store, "system", "inflight-gateway-key")
    await key.refresh()
    before = key.current.tenant_keys(ServiceKey("team", "chat"), "u-1")
    store.set(key=b"n" * 64 + b"\n", previous=key.current.key)
    await key.refresh()
    assert key.current.keys[0] == b"n" * 64
    assert key.current.tenant_keys(ServiceKey("team", "chat"), "u-1")[1:] == before


async def test_the_key_is_made_once_and_has_no_byte_that_stripping_would_take():
    store = Secrets()
    key = LiveGatewayKey(store, "system", "inflight-gateway-key")
    await key.refresh()
    (stored,) = store.secret["data"].values()
    assert base64.b64decode(stored) == key.current.key == key.current.key.strip()
    assert len(key.current.key) >= 32
    other = LiveGatewayKey(store, "system", "inflight-gateway-key")
    await other.refresh()
    assert other.current == key.current


async def test_a_secret_without_a_usable_key_is_an_error_and_the_key_in_use_stays():
    store = Secrets()
    key = LiveGatewayKey(store, "system", "inflight-gateway-key")
    await key.refresh()
    before = key.current
    store.set(key=b"short")
    with pytest.raises(UnusableKeyError, match=r"Secret system/key: data\.key has 5 bytes"):
        await key.refresh()
    assert key.current == before


class Namespace:
    """A stand-in for the API server: Secrets by name."""

    def __init__(self, *secrets):
        self.secrets = {one["metadata"]["name"]: one for one in secrets}

    async def get(self, kind, namespace, name):
        return self.secrets.get(name)

    async def get_or_create(self, manifest):
        return self.secrets.setdefault(manifest["metadata"]["name"], manifest)


def secret(name, labels=None, **data):
    fields = {field: base64.b64encode(value).decode() for field, value in data.items()}
    return {"metadata": {"name": name, "namespace": "system", "labels": labels}, "data": fields}


async def key_of(store, name):
    key = LiveGatewayKey(store, "system", name)
    await key.refresh()
    return key.current


async def test_the_key_that_all_releases_of_a_namespace_shared_is_taken_over_with_the_previous_one():
    store = Namespace(secret(COMMON_GATEWAY_KEY_SECRET_NAME, key=b"k" * 32, previous=b"p" * 32))
    assert await key_of(store, "prod-gateway-key") == GatewayKey(b"k" * 32, b"p" * 32)
    assert set(store.secrets) == {COMMON_GATEWAY_KEY_SECRET_NAME, "prod-gateway-key"}


async def test_a_release_does_not_take_the_key_of_another_whose_secret_has_the_name_that_all_shared():
    store = Namespace()
    theirs = await key_of(store, COMMON_GATEWAY_KEY_SECRET_NAME)
    assert (await key_of(store, "prod-gateway-key")).key != theirs.key


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({}, "data.key has 0 bytes, at least 32 are needed"),
        ({"key": base64.b64encode(b"short").decode()}, "data.key has 5 bytes, at least 32 are needed"),
        ({"key": "no base64"}, ""),
    ],
)
async def test_a_shared_secret_without_a_usable_key_is_not_copied_and_named(data, why, caplog):
    common = secret(COMMON_GATEWAY_KEY_SECRET_NAME) | {"data": data}
    store = Namespace(common)
    assert len((await key_of(store, "prod-gateway-key")).key) >= 32
    assert store.secrets[COMMON_GATEWAY_KEY_SECRET_NAME]["data"] == data
    said = f"prod-gateway-key gets a new key, none is taken over: Secret system/{COMMON_GATEWAY_KEY_SECRET_NAME}: {why}"
    assert said in caplog.text


async def test_a_key_of_its_own_stays_whatever_the_shared_one_is():
    store = Namespace(secret("prod-gateway-key", key=b"o" * 32), secret(COMMON_GATEWAY_KEY_SECRET_NAME, key=b"k" * 32))
    assert await key_of(store, "prod-gateway-key") == GatewayKey(b"o" * 32)
