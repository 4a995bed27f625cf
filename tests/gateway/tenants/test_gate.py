import logging
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from inflight_base.manifest.keys import ObjectKey, ServiceKey
from inflight_gateway.tenants.gate import REPORT_WAIT_S
from inflight_gateway.types import RateLimits, Refusal
from tests.gateway.tenants.things import CHAT, alone, alone_with, catalog_with, config, finished, named, request, secret


def bearer(key):
    return {"authorization": f"Bearer {key}"}


def test_a_right_key_is_its_tenant_in_either_header():
    gate = alone_with(secret(acme="ifk_1", other="ifk_2"))
    assert gate.check(bearer("ifk_1"), config()) == "acme"
    assert gate.check({"api-key": "ifk_2"}, config()) == "other"
    assert gate.check({"authorization": "bearer  ifk_1 "}, config()) == "acme"


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({}, "has no API key"),
        ({"authorization": "Basic aWZr"}, "has no API key"),
        ({"authorization": "Bearer "}, "has no API key"),
        (bearer("ifk_wrong"), "is not valid"),
        (bearer("ifk_1, Bearer ifk_1"), "is not valid"),
        ({"api-key": "\ud800\x00"}, "is not valid"),
    ],
)
def test_without_a_right_key_401_says_what_to_do(headers, said):
    refusal = alone_with(secret(acme="ifk_1")).check(headers, config())
    assert isinstance(refusal, Refusal)
    assert (refusal.status, refusal.code) == (401, "invalid_api_key")
    assert said in refusal.message
    assert ("www-authenticate", "Bearer") in refusal.headers


@given(
    st.dictionaries(
        st.sampled_from(["authorization", "api-key", "x-inflight-request-id", "x-inflight-attempt"]), st.text()
    )
)
def test_no_headers_raise_and_none_pass_without_a_key(headers):
    assert alone_with(secret(acme="ifk_1")).check(headers, config()).status == 401


def test_a_401_before_the_body_counts_for_the_only_service_and_other_answers_do_not():
    gate, other = alone_with(secret(acme="ifk_1")), ServiceKey("team-a", "other")
    for headers, configs, status in (
        ({}, [config()], 401),
        (bearer("ifk_1"), [config()], None),
        ({}, [config(), replace(config(), key=other)], 401),
        ({}, [replace(config(), api_keys_secret="unknown")], None),
        ({}, [], None),
    ):
        refusal = gate.check_before_body(headers, configs)
        assert (refusal and refusal.status) == status
    registry = CollectorRegistry()
    registry.register(gate.usage)
    lines = generate_latest(registry).decode().splitlines()
    refused = [line for line in lines if line.startswith("inflight_gateway_tenant_refused_total{")]
    assert [line.rsplit(" ", 1)[1] for line in refused] == ["1.0"]


def test_a_key_ends_at_its_time():
    data = {"k1": secret(acme="ifk_1")["key-acme"].replace(b"}", b', "expires": "1970-01-01T00:01:00Z"}')}
    clock = [59.0]
    gate = alone_with(data, wall=lambda: clock[0])
    assert gate.check(bearer("ifk_1"), config()) == "acme"
    clock[0] = 60.0
    refusal = gate.check(bearer("ifk_1"), config())
    assert refusal.status == 401
    assert "k1 has expired" in refusal.message


def test_without_its_secret_a_service_is_closed_and_not_open():
    refusal = alone_with(None).check(bearer("ifk_1"), config())
    assert refusal.status == 503
    assert "kubectl inflight keys create chat --tenant NAME -n team-a" in refusal.message


def test_services_without_keys_ask_for_none():
    assert alone().check({}, config(keys=None)) == ""


async def test_a_revoked_key_does_not_cut_an_answer_that_goes_on():
    catalog = catalog_with({"keys": secret(acme="ifk_1")})
    gate = alone(catalog)
    await gate.admit(request(), config(), 0.0)
    catalog.update(secrets={ObjectKey(CHAT.namespace, "keys"): secret(other="ifk_2")})
    headers = bearer("ifk_1") | {"x-inflight-request-id": "r-1", "x-inflight-attempt": "2"}
    assert gate.check(headers, config()) == "acme"
    assert gate.check(headers | {"x-inflight-attempt": "1"}, config()).status == 401
    catalog.update(secrets={ObjectKey("team-b", "keys"): secret(other="ifk_2")})
    another = replace(config(), key=ServiceKey("team-b", "chat"))
    assert gate.check(headers, another).status == 401
    gate.settle(finished())
    assert gate.check(headers, config()).status == 401


async def test_admitted_requests_carry_openais_headers():
    gate = alone()
    answer = await gate.admit(request(), config(named("acme", requests_per_minute=10, tokens_per_minute=100)), 0.0)
    assert dict(answer) == {
        "x-ratelimit-limit-requests": "10",
        "x-ratelimit-remaining-requests": "9",
        "x-ratelimit-reset-requests": "60.25s",
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "70",
        "x-ratelimit-reset-tokens": "60.25s",
    }
    assert await gate.admit(request(2, tenant="free"), config(), 0.0) == ()


async def test_the_first_request_over_a_limit_gets_429_with_the_time_to_wait():
    gate, service = alone(), config(limits=RateLimits(requests_per_minute=2))
    assert not isinstance(await gate.admit(request(1), service, 0.0), Refusal)
    assert not isinstance(await gate.admit(request(2), service, 10.0), Refusal)
    refusal = await gate.admit(request(3), service, 20.0)
    assert (refusal.status, refusal.code) == (429, "rate_limit_exceeded")
    assert refusal.message == (
        "Tenant acme has reached its limit of 2 requests per minute at service chat. Try again in 41 s."
    )
    headers = dict(refusal.headers)
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("41", "40250")
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert not isinstance(await gate.admit(request(3), service, 60.25), Refusal)


async def test_limits_are_those_of_the_tenant_at_the_service():
    gate, service = alone(), config(named("acme", requests_per_minute=1), limits=RateLimits(requests_per_minute=2))
    answers = [await gate.admit(request(number, "acme"), service, 0.0) for number in range(2)]
    others = [await gate.admit(request(number, "other"), service, 0.0) for number in range(2, 5)]
    assert [isinstance(one, Refusal) for one in answers] == [False, True]
    assert [isinstance(one, Refusal) for one in others] == [False, False, True]


async def test_tokens_are_charged_by_estimate_and_settled_by_usage():
    gate, service = alone(), config(limits=RateLimits(tokens_per_minute=100))
    now = time.monotonic()
    await gate.admit(request(1, max_tokens=80), service, now)
    assert isinstance(await gate.admit(request(2, max_tokens=80), service, now), Refusal)
    gate.settle(finished(1, prompt_tokens=12, completion_tokens=5))
    answer = dict(await gate.admit(request(3, max_tokens=10), service, now))
    assert answer["x-ratelimit-remaining-tokens"] == str(100 - 17 - 20)


@pytest.mark.parametrize(
    ("report", "left"),
    [
        ({"status": 503, "endpoints": ()}, 100),
        ({"status": 0, "endpoints": ()}, 100),
        ({"status": 0}, 90),
        ({"status": 200, "completion_tokens": 7}, 83),
    ],
    ids=["refused by the hold queue", "left while held", "left during prefill", "left in the middle"],
)
async def test_requests_without_usage_are_charged_for_what_engines_computed(report, left):
    gate, service = alone(), config(limits=RateLimits(tokens_per_minute=100))
    now = time.monotonic()
    await gate.admit(request(1), service, now)
    gate.settle(finished(1, **report))
    answer = dict(await gate.admit(request(2, prompt_tokens=0, max_tokens=0), service, now))
    assert answer["x-ratelimit-remaining-tokens"] == str(left)


async def test_without_max_tokens_the_tenants_mean_answer_is_charged():
    gate, service = alone(), config(limits=RateLimits(tokens_per_minute=1000))
    answer = dict(await gate.admit(request(1, max_tokens=None), service, 0.0))
    assert answer["x-ratelimit-remaining-tokens"] == str(1000 - 10 - 256)


async def test_requests_that_generate_nothing_cost_no_tokens_and_teach_nothing():
    gate, service = alone(), config(limits=RateLimits(requests_per_minute=9, tokens_per_minute=1000))
    now = time.monotonic()
    answer = dict(await gate.admit(request(1, path="/v1/models", max_tokens=None), service, now))
    assert (answer["x-ratelimit-remaining-requests"], answer["x-ratelimit-remaining-tokens"]) == ("8", "1000")
    gate.settle(finished(1))
    answer = dict(await gate.admit(request(2, max_tokens=None), service, now))
    assert answer["x-ratelimit-remaining-tokens"] == str(1000 - 10 - 256)


async def test_concurrent_requests_end_with_their_streams():
    gate, service = alone(), config(limits=RateLimits(concurrent_requests=1))
    await gate.admit(request(1), service, 0.0)
    refusal = await gate.admit(request(2), service, 0.0)
    assert refusal.status == 429
    assert ("retry-after", "1") in refusal.headers
    gate.ended("r-1", 1.0)
    assert await gate.admit(request(3), service, 1.0) == ()
    gate.settle(finished(1))
    assert isinstance(await gate.admit(request(4), service, 1.0), Refusal)


async def test_later_attempts_are_neither_refused_nor_charged():
    gate, service = alone(), config(limits=RateLimits(requests_per_minute=1, concurrent_requests=1))
    first = await gate.admit(request(1), service, 0.0)
    gate.ended("r-1", 1.0)
    assert await gate.admit(request(1, attempt=2), service, 1.0) == first
    gate.ended("r-1", 2.0)
    gate.settle(finished(1))


async def test_who_only_claims_to_be_a_later_attempt_is_charged_and_refused_like_all():
    gate, service = alone(), config(limits=RateLimits(requests_per_minute=1))
    assert not isinstance(await gate.admit(request(1, attempt=2), service, 0.0), Refusal)
    assert isinstance(await gate.admit(request(2, attempt=2), service, 0.0), Refusal)


async def test_a_first_attempt_that_is_sent_again_is_charged_once():
    """An idle connection to Envoy was closed as the relay reused it."""
    gate, service = alone(), config(limits=RateLimits(requests_per_minute=1))
    first = await gate.admit(request(1), service, 0.0)
    assert await gate.admit(request(1), service, 0.1) == first
    assert isinstance(await gate.admit(request(2), service, 0.1), Refusal)


async def test_a_request_without_a_report_is_forgotten_and_its_estimate_stands():
    gate, service = alone(), config(limits=RateLimits(tokens_per_minute=100, concurrent_requests=5))
    await gate.admit(request(1), service, 0.0)
    gate.ended("r-1", 1.0)
    answer = dict(await gate.admit(request(2), service, 1.0 + REPORT_WAIT_S))
    assert "r-1" not in gate._admitted
    assert answer["x-ratelimit-remaining-tokens"] == "40"


async def test_the_wait_for_a_report_begins_anew_with_each_attempt_and_a_request_counts_once():
    gate, service = alone(), config()
    for now in (0.0, 20.0):
        await gate.admit(request(1), service, now)
        gate.ended("r-1", now + 1.0)
    await gate.admit(request(2), service, 1.0 + REPORT_WAIT_S)
    assert "r-1" in gate._admitted
    await gate.admit(request(3), service, 21.0 + REPORT_WAIT_S)
    assert "r-1" not in gate._admitted
    gate.settle(finished(1))
    (counts,) = gate.usage._services[CHAT].values()
    assert (counts.requests, counts.in_flight) == (1, 2)


@given(
    st.lists(
        st.tuples(st.sampled_from(["admit", "again", "end", "settle", "wait"]), st.integers(0, 4)),
        max_size=80,
    )
)
@settings(deadline=None)
async def test_any_order_of_calls_leaks_nothing(calls):
    """Requests 0 to 4 of tenants 0 to 2."""
    gate, service = alone(), config(limits=RateLimits(requests_per_minute=30, concurrent_requests=3))
    open_streams, now = [], 0.0
    for call, number in calls:
        now += 0.4 * REPORT_WAIT_S if call == "wait" else 0.01
        one = request(number, f"t{number % 3}", attempt=2 if call == "again" else 1)
        if call in ("admit", "again"):
            if not isinstance(await gate.admit(one, service, now), Refusal):
                open_streams.append(number)
        elif call == "end" and number in open_streams:
            open_streams.remove(number)
            gate.ended(f"r-{number}", now)
        elif call == "settle":
            gate.settle(finished(number, prompt_tokens=3, completion_tokens=4))
        for name in ("t0", "t1", "t2"):
            assert gate._limits._accounts.in_flight((CHAT, name)) >= 0
    for number in open_streams:
        gate.ended(f"r-{number}", now)
    for number in range(5):
        for _ in calls:
            gate.settle(finished(number))
    assert gate._admitted == {}
    assert gate._limits._accounts.keys_in_flight() == []
    assert all(counts.in_flight == 0 for counts in gate.usage._services.get(CHAT, {}).values())


async def test_the_estimate_follows_the_tenants_answers():
    gate, service = alone(), config(limits=RateLimits(tokens_per_minute=100_000))
    for number in range(60):
        await gate.admit(request(number, max_tokens=None), service, number * 100.0)
        gate.settle(finished(number, prompt_tokens=10, completion_tokens=40))
    answer = dict(await gate.admit(request(99, max_tokens=None), service, 1e6))
    assert answer["x-ratelimit-remaining-tokens"] == str(100_000 - 10 - 40)


async def test_answers_of_unknown_length_teach_nothing():
    """A plain stream without usage is reported with 0 tokens."""
    gate, service = alone(), config(limits=RateLimits(tokens_per_minute=100_000))
    for number, tokens in enumerate((500, 0, 0)):
        await gate.admit(request(number, max_tokens=None), service, 60.0 * number)
        gate.settle(finished(number, prompt_tokens=10, completion_tokens=tokens))
    answer = dict(await gate.admit(request(9, max_tokens=None), service, 1e6))
    assert answer["x-ratelimit-remaining-tokens"] == str(100_000 - 510)


async def test_usage_is_counted_by_known_tenants_and_all_others_together():
    gate = alone_with(secret(acme="ifk_1"))
    for number, tenant in enumerate(["acme", "named", "stranger-1", "stranger-2"]):
        await gate.admit(request(number, tenant), config(named("named")), 0.0)
        gate.settle(finished(number, prompt_tokens=10, completion_tokens=2, cached_tokens=4))
    gate.check(bearer("no"), config())
    registry = CollectorRegistry()
    registry.register(gate.usage)
    said = generate_latest(registry).decode()
    labels = 'namespace="team-a",service="chat",tenant='
    assert f'inflight_gateway_tenant_requests_total{{{labels}"acme"}} 1.0' in said
    assert f'inflight_gateway_tenant_requests_total{{{labels}"other"}} 2.0' in said
    assert f'inflight_gateway_tenant_tokens_total{{kind="completion",{labels}"named"}} 2.0' in said
    refused = 'namespace="team-a",reason="key",service="chat",tenant="anonymous"'
    assert f"inflight_gateway_tenant_refused_total{{{refused}}} 1.0" in said
    assert "stranger" not in said


async def test_a_service_that_is_gone_leaves_no_metrics():
    gate = alone()
    await gate.admit(request(1), config(), 0.0)
    gate.usage.forget(CHAT)
    gate.settle(finished(1))
    assert [sample for metric in gate.usage.collect() for sample in metric.samples if sample.labels] == []


async def test_a_hundred_thousand_wrong_keys_leave_nothing_behind(caplog):
    gate = alone_with(secret(acme="ifk_1"))
    with caplog.at_level(logging.DEBUG):
        for number in range(100_000):
            assert gate.check(bearer(f"ifk_{number}x"), config()).status == 401
    assert caplog.text == ""
    assert len(gate.usage._services[CHAT]) == 1
