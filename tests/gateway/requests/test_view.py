"""Conversion of a relay's question to the input of the picker."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.link.wire import Ask
from inflight_gateway.request.body import Body
from inflight_gateway.requests.view import view
from inflight_gateway.types import ServiceClass, ServiceConfig

CLASSES = (ServiceClass("chat", priority=2), ServiceClass("batch", priority=5, ttft_s=30.0))
CONFIG = ServiceConfig(ServiceKey("default", "a"), "uid", "m", ttft_s=0.5, ttft_per_token_s=0.001, classes=CLASSES)


def seen(attempt=1, avoid=(), age_s=0.0, config=CONFIG, **body):
    fields = Body(prompt_tokens=1000, **body)
    ask = Ask("r", attempt, CONFIG.key, "acme", "k1", "/v1/completions", fields, 5, avoid, "id", age_s)
    return view(ask, config, 10.0)


def test_the_first_class_is_the_default_and_its_target_makes_the_deadline():
    request = seen()
    assert (request.service_class, request.priority, request.deadline) == ("chat", 2, 11.5)
    assert (request.path, request.tenant, request.external_id) == ("/v1/completions", "acme", "id")
    assert (request.attempt, request.avoid, request.body_bytes) == (1, frozenset(), 5)


def test_the_time_at_the_relay_counts_against_the_deadline():
    assert (seen(age_s=0.5).arrived, seen(age_s=0.5).deadline) == (9.5, 11.0)


@pytest.mark.parametrize(
    "without", [{"ttft_s": None}, {"by_deadline": False}, {"ttft_s": None, "classes": (ServiceClass("chat"),)}]
)
def test_without_a_target_or_the_order_by_it_there_is_no_deadline(without):
    assert seen(config=replace(CONFIG, **without)).deadline == inf


def test_a_class_with_a_target_has_deadlines_in_a_service_without_one():
    assert seen(config=replace(CONFIG, ttft_s=None), service_class="batch").deadline == 41.0


def test_a_class_has_its_own_target_and_a_request_its_own_priority():
    request = seen(service_class="batch")
    assert (request.service_class, request.priority, request.deadline) == ("batch", 5, 41.0)
    assert seen(priority=-7).priority == -7


@pytest.mark.parametrize("priority", [-101, 101, 2**31 - 1, -(2**31)])
def test_a_priority_that_engines_refuse_does_not_count(priority):
    assert seen(priority=priority).priority == 2


def test_a_class_that_is_not_there_is_the_engines_to_refuse():
    assert seen(service_class="nonsense").service_class == "chat"


def test_a_try_again_goes_before_first_tries():
    request = seen(attempt=2, avoid=("10.0.0.1:80", "10.0.0.2:80"))
    assert (request.attempt, request.priority, request.deadline) == (2, -100, inf)
    assert request.avoid == {"10.0.0.1:80", "10.0.0.2:80"}


def test_choices_and_prefix_are_those_of_the_body_and_tenants_share_no_blocks():
    blocks = bytes(range(16))
    assert seen(choices=3).choices == 3
    assert len(seen(blocks=blocks).prefix) == 2
    assert seen(blocks=blocks).prefix == Body(blocks=blocks).prefix("acme") != Body(blocks=blocks).prefix("")
