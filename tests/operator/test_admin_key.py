"""The operator's own key: made once, shared by all replicas, read again while the operator runs."""

import asyncio
import base64
import hashlib
import hmac

import pytest

from inflight_operator.keys import AdminKey, LiveAdminKey, UnusableKeyError


class Secrets:
    """A stand-in for the API server: one Secret."""

    def __init__(self, secret=None):
        self.secret = secret

    async def get_or_create(self, manifest):
        found = self.secret
        await asyncio.sleep(0)
        if found is None and self.secret is None:
            self.secret = manifest
        return self.secret

    def set(self, **data):
        self.secret = {
            "metadata": {"name": "key", "namespace": "system"},
            "data": {name: base64.b64encode(value).decode() for name, value in data.items()},
        }


def test_a_token_is_derived_from_the_key_the_service_s_uid_and_the_epoch():
    digest = hmac.new(b"k" * 32, b"uid-1/2", hashlib.sha256).digest()
    token = AdminKey(b"k" * 32, "2").token("uid-1")
    assert token == base64.urlsafe_b64encode(digest).decode().rstrip("=")
    assert len({token, AdminKey(b"k" * 32, "3").token("uid-1"), AdminKey(b"k" * 32, "2").token("uid-2")}) == 3


def test_a_key_does_not_show_in_its_representation():
    assert "kkk" not in repr(AdminKey(b"k" * 32, "1"))


async def test_two_that_race_to_create_it_use_the_same_key():
    store = Secrets()
    one, other = (LiveAdminKey(store, "system", "key") for _ in range(2))
    await asyncio.gather(one.refresh(), other.refresh())
    assert one.current == other.current
    assert len(one.current.key) == 32
    assert one.current.epoch == "1"


async def test_another_epoch_or_key_takes_effect_without_a_restart():
    store = Secrets()
    key = LiveAdminKey(store, "system", "key")
    await key.refresh()
    before = key.current
    store.set(key=before.key, epoch=b"2\n")
    await key.refresh()
    assert key.current == AdminKey(before.key, "2")
    store.set(key=b"x" * 40, epoch=b"2")
    await key.refresh()
    assert key.current == AdminKey(b"x" * 40, "2")


async def test_a_deleted_secret_comes_back_with_the_key_in_use():
    store = Secrets()
    key = LiveAdminKey(store, "system", "key")
    await key.refresh()
    before, store.secret = key.current, None
    await key.refresh()
    assert key.current == before
    assert store.secret is not None


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"epoch": b"1"}, "data.key has 0 bytes, at least 32 are needed"),
        ({"key": b"k" * 31, "epoch": b"1"}, "data.key has 31 bytes"),
        ({"key": b"k" * 32}, "data.epoch is missing"),
        ({"key": b"k" * 32, "epoch": b"\xff"}, "can't decode"),
    ],
)
async def test_a_secret_that_cannot_be_used_is_an_error_and_the_key_in_use_stays(data, said):
    store = Secrets()
    key = LiveAdminKey(store, "system", "key")
    await key.refresh()
    before = key.current
    store.set(**data)
    with pytest.raises(UnusableKeyError, match=f"Secret system/key: .*{said}"):
        await key.refresh()
    assert key.current == before


def test_a_key_that_was_never_read_is_a_mistake_of_the_caller():
    with pytest.raises(RuntimeError, match="not read yet"):
        _ = LiveAdminKey(Secrets(), "system", "key").current
