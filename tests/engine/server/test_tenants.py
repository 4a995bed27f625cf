"""Whose a request is, where a gateway signs it. Where the header is trusted as it is: test_scheduling_fields.py."""

import asyncio
import hashlib
import hmac
import time

import pytest

from tests.engine.server.fake_engine import until

KEY = "k" * 43


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "tenant-key"
    path.write_text(KEY + "\n")
    return path


def signed(tenant, *keys, request_id="r1", age=0, progress=()):
    at = int(time.time()) - age
    message = "\n".join((str(at), tenant, request_id, *progress)).encode()
    signatures = ",".join(hmac.new(key.encode(), message, hashlib.sha256).hexdigest() for key in keys or (KEY,))
    headers = {"X-Inflight-Signature": f"v2={at}:{signatures}", "X-Request-Id": "r1"}
    return headers | ({"X-Inflight-Tenant": tenant} if tenant else {})


def post(fake, headers, **body):
    return asyncio.create_task(fake.http.post("/v1/completions", json={"prompt": "a"} | body, headers=headers))


async def seen(fake, headers, **body):
    """Returns the scheduling parameters of the request that the engine gets."""
    call, count = post(fake, headers, **body), len(fake.engine.requests)
    await until(lambda: len(fake.engine.requests) > count)
    request = [*fake.engine.requests.values()][-1]
    fake.engine.answer(request.request_id, "x")
    assert (await call).status_code == 200
    return request.scheduling


async def tenant_seen(fake, headers):
    return (await seen(fake, headers)).tenant


async def test_a_signed_request_reaches_the_engine_with_its_tenant_or_without_one(make_fake, key_file):
    fake = await make_fake(tenant_key_file=key_file)
    assert await tenant_seen(fake, signed("acme")) == "acme"
    assert await tenant_seen(fake, signed("")) == ""
    assert await tenant_seen(fake, signed("acme", "another key", KEY)) == "acme"
    progress = {"X-Inflight-Progress": "1"}
    assert await tenant_seen(fake, signed("acme", progress=["1"]) | progress) == "acme"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Inflight-Tenant": "acme"},
        signed("acme", "other"),
        signed("acme", request_id="r2"),
        signed("acme", age=1000),
        signed("acme", age=-100_000),  # signed at import; the tests may run for long before this one
        signed("acme") | {"X-Inflight-Tenant": "other"},
        signed("acme") | {"X-Inflight-Progress": "1"},
        signed("acme", progress=["1"]),
        signed("") | {"X-Inflight-Tenant": "other"},
        signed("acme") | {"X-Inflight-Signature": signed("acme")["X-Inflight-Signature"][3:]},
        signed("acme", *["x"] * 4, KEY),
        signed("acme") | {"X-Inflight-Signature": "é"},
        signed("acme") | {"X-Inflight-Signature": ""},
        {name: value for name, value in signed("acme").items() if name != "X-Request-Id"},
    ],
)
async def test_a_request_without_its_signature_is_401(make_fake, key_file, headers):
    fake = await make_fake(tenant_key_file=key_file)
    answer = await post(fake, [(name, value.encode("latin-1")) for name, value in headers.items()])
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_tenant_signature")
    assert not fake.engine.requests


async def test_two_signatures_or_two_tenants_are_refused(make_fake, key_file):
    fake = await make_fake(tenant_key_file=key_file)
    signature, request_id, tenant = signed("acme").items()
    assert (await post(fake, [signature, signature, request_id, tenant])).status_code == 401
    assert (await post(fake, [signature, request_id, tenant, tenant])).status_code == 400


def replace(key_file, key, previous):
    key_file.with_name("tenant-key-previous").write_text(previous)
    new = key_file.with_name("new")
    new.write_text(key)
    new.rename(key_file)


async def test_a_new_key_is_used_when_the_file_changes_and_the_previous_one_beside_it(make_fake, key_file):
    fake = await make_fake(tenant_key_file=key_file)
    assert await tenant_seen(fake, signed("acme")) == "acme"
    replace(key_file, "a new key", previous=KEY)
    for key in ("a new key", KEY):
        assert await tenant_seen(fake, signed("acme", key)) == "acme"
    replace(key_file, "a newer key", previous="a new key")
    assert (await post(fake, signed("acme"))).status_code == 401


async def test_without_a_key_requests_are_503_and_where_the_file_says_none_the_tenant_is_ignored(make_fake, key_file):
    fake = await make_fake(tenant_key_file=key_file)
    for change in (lambda: key_file.write_text(""), key_file.unlink):
        change()
        for headers in (signed("acme", ""), {}):
            answer = await post(fake, headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_tenant_key")
    key_file.write_text("none\n")
    assert await tenant_seen(fake, {}) == ""
    assert await tenant_seen(fake, signed("acme")) == ""


PROGRESS = {"X-Inflight-Progress": "1"}
CONTINUED = {"inflight_continuation": {"choices": [{"token_ids": [98]}], "created": 1}}


async def resumes(fake, headers):
    """Tells whether an answer that goes on does so before new requests, uncharged."""
    return (await seen(fake, headers | PROGRESS, **CONTINUED)).resumes


@pytest.mark.parametrize("settings", [{}, {"trust_tenant_header": True}])
async def test_without_a_key_a_continued_answer_goes_on_as_a_new_request(make_fake, settings):
    fake = await make_fake(**settings)
    assert not await resumes(fake, {})
    assert not await resumes(fake, signed("", progress=["1"]))


async def test_a_continued_answer_goes_before_new_requests_where_a_gateway_signs_it(make_fake, key_file):
    fake = await make_fake(tenant_key_file=key_file)
    assert await resumes(fake, signed("acme", progress=["1"]))


async def test_where_requests_need_no_signature_a_continued_answer_still_does_to_go_first(make_fake, key_file):
    key_file.write_text("none")
    fake = await make_fake(tenant_key_file=key_file)
    ours = signed("", progress=["1"])
    assert not await resumes(fake, ours)
    beside = key_file.with_name("tenant-key-progress")
    beside.write_text(KEY)
    assert await resumes(fake, ours)
    for other in ({}, signed(""), signed("", "other", progress=["1"]), signed("", progress=["1"], age=1000)):
        assert not await resumes(fake, {"X-Request-Id": "r1"} | other)
    beside.with_name("tenant-key-progress-previous").write_text(KEY)
    new = beside.with_name("new")
    new.write_text("a new key")
    new.rename(beside)
    assert await resumes(fake, ours)
    assert await tenant_seen(fake, {}) == ""
