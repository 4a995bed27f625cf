"""Requests as vLLM gets them."""

import json

import pytest
from starlette.datastructures import Headers

from inflight_base.signing import signed, tenant_message
from inflight_contract.errors import ApiError
from inflight_vllm.requests import RequestRules
from inflight_vllm.settings import read_settings

NOW = 1_700_000_000.0
CHAT = "/v1/chat/completions"


def rules(ordered=True, **environment):
    settings = read_settings({f"INFLIGHT_{name}": value for name, value in environment.items()})
    return RequestRules(settings, ordered=ordered, clock=lambda: NOW)


def changed(found, fields, tenant=""):
    return json.loads(found.body(json.dumps(fields).encode(), tenant))


def test_without_classes_targets_and_tenants_nothing_is_changed():
    assert not rules().changes_bodies(CHAT, "")
    assert not rules(ordered=False, TTFT_TARGET="1").changes_bodies(CHAT, "")


def test_only_generating_paths_are_changed():
    found = rules(TTFT_TARGET="1")
    assert found.changes_bodies(CHAT, "")
    assert not found.changes_bodies("/tokenize", "tenant")


def test_the_number_is_the_deadline_of_the_class():
    found = rules(TTFT_TARGET="2", CLASSES="fast:ttft=0.5;slow")
    assert changed(found, {"prompt": "x"}) == {"prompt": "x", "priority": 1_700_000_000_500}
    assert changed(found, {"class": "slow"}) == {"priority": 1_700_000_002_000}
    assert changed(rules(CLASSES="fast:ttft=0.5;slow"), {"class": "slow"}) == {"priority": 1_700_000_060_000}


def test_a_client_cannot_set_its_deadline():
    assert changed(rules(TTFT_TARGET="2"), {"priority": -5}) == {"priority": 1_700_000_002_000}


def test_without_targets_the_number_is_that_of_the_request_or_its_class():
    found = rules(CLASSES="fast:priority=-3;slow:priority=4")
    assert changed(found, {"class": "slow"}) == {"priority": 4}
    assert changed(found, {"class": "slow", "priority": 1}) == {"priority": 1}


def test_a_server_in_order_of_arrival_gets_no_number():
    assert changed(rules(ordered=False, CLASSES="fast:ttft=1;slow"), {"class": "slow", "n": 1}) == {"n": 1}


@pytest.mark.parametrize("name", ["other", 3, None, [], {}])
def test_an_unknown_class_is_refused_by_name(name):
    with pytest.raises(ApiError, match="there is no class") as error:
        changed(rules(CLASSES="fast;slow"), {"class": name})
    assert (error.value.status, error.value.param) == (400, "class")


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff", b'"x"', b"[" * 100_000])
def test_what_is_no_object_is_left_for_vllm_to_refuse(body):
    assert rules(TTFT_TARGET="1").body(body, "tenant") == body


def test_tenants_never_share_a_salt_of_the_prefix_cache():
    salts = {
        changed(rules(), fields, tenant)["cache_salt"]
        for tenant in ("a", "b", "c")
        for fields in ({}, {"cache_salt": "b"}, {"cache_salt": "c"})
    }
    assert len(salts) == 9
    assert all(len(salt) <= 128 and salt.isalnum() for salt in salts)
    assert changed(rules(), {}, "a") == changed(rules(), {}, "a")


def test_requests_have_to_be_signed_where_there_is_a_key(tmp_path):
    (tmp_path / "key").write_bytes(b"secret")
    found = rules(TENANT_KEY_FILE=str(tmp_path / "key"))
    signature = signed([b"secret"], tenant_message("team", "id-1"), NOW)
    headers = Headers({"x-inflight-tenant": "team", "x-inflight-signature": signature})
    assert found.tenant(headers, "id-1") == "team"
    for wrong, request_id in ((headers, "id-2"), (Headers({"x-inflight-tenant": "team"}), "id-1"), (Headers({}), "")):
        with pytest.raises(ApiError) as error:
            found.tenant(wrong, request_id)
        assert error.value.status == 401


def test_without_a_key_the_header_is_not_believed():
    assert rules().tenant(Headers({"x-inflight-tenant": "team"}), "id") == ""
