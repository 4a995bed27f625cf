"""Requests that the gateway signs, at engines: both sides of the contract, while the gateway's key is rotated."""

import base64
import hashlib
import hmac

import pytest
from starlette.datastructures import Headers

from inflight_base.manifest.keys import ServiceKey
from inflight_base.signing import is_signed, signed, tenant_key
from inflight_contract.errors import ApiError
from inflight_contract.tenants import MAX_AGE_S, Tenants
from inflight_gateway.request.headers import PROGRESS, SIGNATURE, TENANT, TENANT_SIGNATURE_V1
from inflight_gateway.tenants.signature import EngineHeaders
from inflight_gateway.types import ServiceConfig
from inflight_operator.keys import GatewayKey

CHAT = ServiceConfig(ServiceKey("team-a", "chat"), uid="u-1", model="m", api_keys_secret="keys")
KEYLESS = ServiceConfig(CHAT.key, "u-1", "m")
NOW = 1_700_000_000.0
OLD, NEW = (b"old" * 12, None), (b"new" * 12, b"old" * 12)
"""Current and previous key before and after a rotation."""


@pytest.fixture
def engine(tmp_path):
    """Returns a function that makes the check of an engine whose Secret was derived from these gateway keys."""

    def made(current, previous=None, now=NOW):
        keys = GatewayKey(current, previous).tenant_keys(CHAT.key, CHAT.uid)
        for name, key in zip(("tenant-key", "tenant-key-previous"), keys, strict=False):
            (tmp_path / name).write_text(key)
        return Tenants(key_file=tmp_path / "tenant-key", wall=lambda: now)

    return made


def headers(*keys, tenant="acme", request_id="r-1", config=CHAT):
    return Headers(dict(EngineHeaders(*keys, wall=lambda: NOW).to_set(config, tenant, request_id)))


def refused(tenants, given, request_id="r-1"):
    with pytest.raises(ApiError) as error:
        tenants.of(given, request_id)
    assert (error.value.status, error.value.code) == (401, "invalid_tenant_signature")
    return error.value.message


def test_progress_is_signed_and_cannot_be_added_or_taken_away(engine):
    tenants = engine(*OLD)
    plain, asked = (dict(EngineHeaders(*OLD, wall=lambda: NOW).to_set(CHAT, "acme", "r-1", each)) for each in ("", "1"))
    assert tenants.of(Headers(asked | {PROGRESS: "1"}), "r-1") == "acme"
    refused(tenants, Headers(plain | {PROGRESS: "1"}))
    refused(tenants, Headers(asked | {PROGRESS: "2"}))
    refused(tenants, Headers(asked))


def test_the_tenant_key_is_the_contracts():
    digest = hmac.new(b"gateway", b"tenant/team-a/chat/u-1", hashlib.sha256).digest()
    made = tenant_key(b"gateway", CHAT.key, "u-1")
    assert made == base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    assert len(made) == 43


@pytest.mark.parametrize("key", [b"k", b"k" * 64, b"k" * 65])
def test_a_signature_is_the_contracts(key):
    expected = hmac.new(key, b"1700000000\nacme\nr-1", hashlib.sha256).hexdigest()
    assert signed([key], b"acme\nr-1", NOW + 0.9) == f"v2=1700000000:{expected}"


@pytest.mark.parametrize("gateway", [OLD, NEW])
@pytest.mark.parametrize("derived", [OLD, NEW])
@pytest.mark.parametrize("tenant", ["acme", ""])
def test_a_rotated_key_is_accepted_whichever_side_sees_it_first(engine, gateway, derived, tenant):
    given = headers(*gateway, tenant=tenant)
    assert engine(*derived).of(given, "r-1") == tenant
    assert is_signed([key for key in derived if key], b"x", signed([key for key in gateway if key], b"x", NOW), NOW)


def test_keys_older_than_the_previous_one_are_refused(engine):
    assert "only the gateway" in refused(engine(*NEW), headers(b"older" * 8))
    assert not is_signed([NEW[0]], b"x", signed([NEW[1]], b"x", NOW), NOW)


@pytest.mark.parametrize("apart", [-MAX_AGE_S - 1, MAX_AGE_S + 1])
def test_a_signature_is_valid_for_five_minutes_before_and_after_its_time(engine, apart):
    assert engine(*OLD, now=NOW + 0.99 * apart).of(headers(*OLD), "r-1") == "acme"
    assert "engine's clock" in refused(engine(*OLD, now=NOW + apart), headers(*OLD))
    assert not is_signed([b"k"], b"x", signed([b"k"], b"x", NOW), NOW + apart)


def test_a_signature_is_for_one_request_tenant_and_service(engine):
    check, given = engine(*OLD), headers(*OLD)
    refused(check, given, "r-2")
    refused(check, Headers(dict(given) | {TENANT: "other"}))
    refused(check, Headers({name: value for name, value in given.items() if name != TENANT}))
    refused(check, headers(*OLD, config=ServiceConfig(CHAT.key, "u-2", "m")))


def test_an_unsigned_request_is_not_taken_as_one_of_the_common_tenant(engine):
    refused(engine(*OLD), Headers({}))
    refused(engine(*OLD), Headers({TENANT: "acme"}))


def test_without_a_gateway_key_services_with_api_keys_are_refused_and_others_served_unsigned():
    unable, able = EngineHeaders(None), EngineHeaders(b"gateway")
    refusal = unable.refusal(CHAT)
    assert (refusal.status, refusal.code) == (503, "gateway_key_unavailable")
    assert [unable.refusal(KEYLESS), able.refusal(CHAT), able.refusal(KEYLESS)] == [None] * 3
    assert unable.to_set(KEYLESS, "", "r-1") == ()


def test_requests_without_a_tenant_are_signed_for_engines_that_do_not_know_yet_that_the_api_keys_went(engine):
    ((name, _),) = EngineHeaders(OLD[0]).to_set(KEYLESS, "", "r-1")
    assert name == SIGNATURE
    assert engine(*OLD).of(headers(OLD[0], tenant="", config=KEYLESS), "r-1") == ""


def test_engines_of_release_0_2_get_the_signature_that_they_know():
    key = tenant_key(b"gateway", CHAT.key, "u-1").encode()
    expected = "v1=" + hmac.new(key, b"acme\nr-1", hashlib.sha256).hexdigest()
    assert headers(b"gateway", b"previous")[TENANT_SIGNATURE_V1] == expected


def test_api_keys_never_reach_engines_and_other_credentials_do():
    assert EngineHeaders.to_remove(CHAT) == ("authorization", "api-key", "x-api-key")
    assert EngineHeaders.to_remove(KEYLESS) == ()
