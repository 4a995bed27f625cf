"""Whose a request is, where a gateway signs it. Where the header is trusted as it is: test_scheduling_fields.py."""

import asyncio
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_engine.server.requests.tenants import signature
from tests.engine.server.fake_engine import until

KEY = "k" * 43


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "tenant-key"
    path.write_text(KEY + "\n")
    return path


def signed(tenant, key=KEY, request_id="r1"):
    signature = hmac.new(key.encode(), f"{tenant}\n{request_id}".encode(), hashlib.sha256).hexdigest()
    return {"X-Inflight-Tenant": tenant, "X-Inflight-Tenant-Signature": f"v1={signature}", "X-Request-Id": "r1"}


def post(fake, headers):
    return asyncio.create_task(fake.http.post("/v1/completions", json={"prompt": "a"}, headers=headers))


async def tenant_seen(fake, headers):
    """Returns the tenant of the request that the engine gets."""
    call, count = post(fake, headers), len(fake.engine.requests)
    await until(lambda: len(fake.engine.requests) > count)
    request = [*fake.engine.requests.values()][-1]
    fake.engine.answer(request.request_id, "x")
    assert (await call).status_code == 200
    return request.scheduling.tenant


async def test_a_signed_tenant_reaches_the_engine_and_a_request_without_one_has_none(make_fake, key_file):
    fake = await make_fake(tenant_key_file=key_file)
    assert await tenant_seen(fake, signed("acme")) == "acme"
    assert await tenant_seen(fake, {}) == ""


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Inflight-Tenant": "acme"},
        signed("acme", key="other"),
        signed("acme", request_id="r2"),
        signed("acme") | {"X-Inflight-Tenant": "other"},
        signed("acme") | {"X-Inflight-Tenant-Signature": signed("acme")["X-Inflight-Tenant-Signature"][3:]},
        signed("acme") | {"X-Inflight-Tenant-Signature": "é"},
        signed("acme") | {"X-Inflight-Tenant-Signature": ""},
        {name: value for name, value in signed("acme").items() if name != "X-Request-Id"},
    ],
)
async def test_a_tenant_without_its_signature_is_401(make_fake, key_file, headers):
    fake = await make_fake(tenant_key_file=key_file)
    answer = await post(fake, [(name, value.encode("latin-1")) for name, value in headers.items()])
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_tenant_signature")
    assert not fake.engine.requests


async def test_two_signatures_or_two_tenants_are_refused(make_fake, key_file):
    fake = await make_fake(tenant_key_file=key_file)
    headers = [*signed("acme").items()]
    assert (await post(fake, [*headers, headers[1]])).status_code == 401
    assert (await post(fake, [*headers, headers[0]])).status_code == 400


async def test_a_new_key_is_used_when_the_file_changes_and_without_one_no_tenant_is_believed(make_fake, key_file):
    fake = await make_fake(tenant_key_file=key_file)
    assert await tenant_seen(fake, signed("acme")) == "acme"
    new = key_file.with_name("new")
    new.write_text("another key of another length")
    new.rename(key_file)
    assert (await post(fake, signed("acme"))).status_code == 401
    assert await tenant_seen(fake, signed("acme", key="another key of another length")) == "acme"
    for change in (lambda: key_file.write_text(""), key_file.unlink):
        change()
        answer = await post(fake, signed("acme", key=""))
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_tenant_key")
    assert await tenant_seen(fake, {}) == ""


@given(st.text("!~aé", max_size=5), st.text("!~a", max_size=5))
def test_the_signature_is_the_hmac_of_tenant_and_request(tenant, request_id):
    expected = hmac.new(KEY.encode(), f"{tenant}\n{request_id}".encode(), hashlib.sha256).hexdigest()
    assert signature(KEY.encode(), tenant, request_id) == f"v1={expected}"
