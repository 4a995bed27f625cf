"""Conversion of head and body to the input of the picker."""

from __future__ import annotations

import pytest
from inflight_gateway.request.view import Head, view

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.request.body import NO_FIELDS, Body, to_header
from inflight_gateway.types import ServiceClass, ServiceConfig

CLASSES = (ServiceClass("chat", priority=2), ServiceClass("batch", priority=5, ttft_s=30.0))
CONFIG = ServiceConfig(ServiceKey("default", "a"), "uid", "m", ttft_s=0.5, ttft_per_token_s=0.001, classes=CLASSES)


def seen(body=None, **headers):
    pairs = {":path": "/v1/completions?x=1", ":authority": "a", "x-request-id": "id"}
    pairs |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = Head(pairs.items(), end_of_stream=False)
    return view(head, body or Body(prompt_tokens=1000), 5, CONFIG, "acme", arrived=10.0)


def test_the_first_class_is_the_default_and_its_target_makes_the_deadline():
    request = seen()
    assert (request.service_class, request.priority, request.deadline) == ("chat", 2, 11.5)
    assert (request.path, request.tenant, request.external_id) == ("/v1/completions", "acme", "id")
    assert (request.attempt, request.avoid) == (1, frozenset())


def test_a_class_has_its_own_target_and_a_request_its_own_priority():
    request = seen(Body(service_class="batch"))
    assert (request.service_class, request.priority, request.deadline) == ("batch", 5, 40.0)
    assert seen(Body(priority=-7)).priority == -7


@pytest.mark.parametrize("priority", [-101, 101, 10**400, -(10**400)])
def test_a_priority_that_engines_refuse_does_not_count(priority):
    assert seen(Body(priority=priority)).priority == 2


def test_a_class_that_is_not_there_is_the_engines_to_refuse():
    assert seen(Body(service_class="nonsense")).service_class == "chat"


def test_a_try_again_goes_before_first_tries():
    request = seen(x_inflight_attempt="2", x_inflight_avoid="10.0.0.1:80, 10.0.0.2:80")
    assert (request.attempt, request.priority, request.deadline) == (2, -100, float("inf"))
    assert request.avoid == {"10.0.0.1:80", "10.0.0.2:80"}


@pytest.mark.parametrize("value", ["", "0", "x", "-1", "\u0662", "1.5", "9" * 5000])
def test_an_attempt_that_is_no_number_is_the_first(value):
    assert seen(x_inflight_attempt=value).attempt == 1


def test_a_request_without_an_id_gets_one():
    assert Head([], end_of_stream=True).request_id != Head([], end_of_stream=True).request_id


def test_the_fields_that_a_relay_read_are_not_kept_as_text():
    body = Body("m", stream=True, blocks=b"12345678")
    head = Head([("x-inflight-body", to_header(body).decode()), ("content-length", "17")], end_of_stream=False)
    assert (head.body, head.body_bytes) == (body, 17)
    assert "x-inflight-body" not in head.headers
    assert Head([("x-inflight-body", "nonsense")], end_of_stream=False).body == NO_FIELDS
    assert Head([], end_of_stream=False).body is None


@pytest.mark.parametrize("value", ["", "x", "-1", "\u0662", "1" * 20, "1" * 5000])
def test_a_length_that_is_no_number_counts_as_unknown(value):
    assert Head([("content-length", value)], end_of_stream=False).body_bytes == 0
