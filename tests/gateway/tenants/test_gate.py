import logging
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from inflight_gateway.tenants.gate import KEYLESS
from inflight_gateway.types import RateLimits, Refusal
from tests.gateway.tenants.things import CHAT, config, finished, gate_of, gate_with, named, request, secret


def remaining(admitted):
    return int(dict(admitted.headers)["x-ratelimit-remaining-tokens"])


def bearer(key):
    return {"authorization": f"Bearer {key}"}


def test_a_right_key_is_its_tenant_in_either_header():
    gate = gate_with(secret(acme="ifk_1", other="ifk_2"))
    assert gate.check(bearer("ifk_1"), config()).tenant == "acme"
    assert gate.check({"api-key": "ifk_2"}, config()).tenant == "other"
    assert gate.check({"authorization": "bearer  ifk_1 "}, config()).tenant == "acme"


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
    refusal = gate_with(secret(acme="ifk_1")).check(headers, config())
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
    assert gate_with(secret(acme="ifk_1")).check(headers, config()).status == 401


def test_a_key_ends_at_its_time():
    data = {"k1": secret(acme="ifk_1")["key-acme"].replace(b"}", b', "expires": "1970-01-01T00:01:00Z"}')}
    clock = [59.0]
    gate = gate_with(data, wall=lambda: clock[0])
    assert gate.check(bearer("ifk_1"), config()).tenant == "acme"
    clock[0] = 60.0
    refusal = gate.check(bearer("ifk_1"), config())
    assert refusal.status == 401
    assert "k1 has expired" in refusal.message


def test_without_its_secret_a_service_is_closed_and_not_open():
    refusal = gate_with(None).check(bearer("ifk_1"), config())
    assert refusal.status == 503
    assert "kubectl inflight keys create chat --tenant NAME -n team-a" in refusal.message


def test_services_without_keys_ask_for_none():
    assert gate_of().check({}, config(keys=None)) == KEYLESS


def test_admitted_requests_carry_openais_headers():
    gate = gate_of()
    answer = gate.admit(request(), config(named("acme", requests_per_minute=10, tokens_per_minute=100)), 0.0)
    assert dict(answer.headers) == {
        "x-ratelimit-limit-requests": "10",
        "x-ratelimit-remaining-requests": "9",
        "x-ratelimit-reset-requests": "60.25s",
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "70",
        "x-ratelimit-reset-tokens": "60.25s",
    }
    assert gate.admit(request(2, tenant="free"), config(), 0.0).headers == ()


def test_the_first_request_over_a_limit_gets_429_with_the_time_to_wait():
    gate, service = gate_of(), config(limits=RateLimits(requests_per_minute=2))
    assert not isinstance(gate.admit(request(1), service, 0.0), Refusal)
    assert not isinstance(gate.admit(request(2), service, 10.0), Refusal)
    refusal = gate.admit(request(3), service, 20.0)
    assert (refusal.status, refusal.code) == (429, "rate_limit_exceeded")
    assert refusal.message == (
        "Tenant acme has reached its limit of 2 requests per minute at service chat. Try again in 41 s."
    )
    headers = dict(refusal.headers)
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("41", "40250")
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert not isinstance(gate.admit(request(3), service, 60.25), Refusal)


def test_limits_are_those_of_the_tenant_at_the_service():
    gate, service = gate_of(), config(named("acme", requests_per_minute=1), limits=RateLimits(requests_per_minute=2))
    answers = [gate.admit(request(number, "acme"), service, 0.0) for number in range(2)]
    others = [gate.admit(request(number, "other"), service, 0.0) for number in range(2, 5)]
    assert [isinstance(one, Refusal) for one in answers] == [False, True]
    assert [isinstance(one, Refusal) for one in others] == [False, False, True]


def test_tokens_are_charged_by_estimate_and_settled_by_usage():
    gate, service = gate_of(), config(limits=RateLimits(tokens_per_minute=100))
    now = time.monotonic()
    admitted = gate.admit(request(1, max_tokens=80), service, now)
    assert isinstance(gate.admit(request(2, max_tokens=80), service, now), Refusal)
    gate.settle(request(1), admitted, finished(1, prompt_tokens=12, completion_tokens=5))
    answer = dict(gate.admit(request(3, max_tokens=10), service, now).headers)
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
def test_requests_without_usage_are_charged_for_what_engines_computed(report, left):
    gate, service = gate_of(), config(limits=RateLimits(tokens_per_minute=100))
    now = time.monotonic()
    admitted = gate.admit(request(1), service, now)
    gate.settle(request(1), admitted, finished(1, **report))
    answer = dict(gate.admit(request(2, prompt_tokens=0, max_tokens=0), service, now).headers)
    assert answer["x-ratelimit-remaining-tokens"] == str(left)


def test_without_max_tokens_the_tenants_mean_answer_is_charged():
    gate, service = gate_of(), config(limits=RateLimits(tokens_per_minute=1000))
    answer = dict(gate.admit(request(1, max_tokens=None), service, 0.0).headers)
    assert answer["x-ratelimit-remaining-tokens"] == str(1000 - 10 - 256)


def test_requests_are_in_flight_while_an_attempt_is_under_way():
    gate, service = gate_of(), config(limits=RateLimits(concurrent_requests=1))
    first = gate.admit(request(1), service, 0.0)
    refusal = gate.admit(request(2), service, 0.0)
    assert refusal.status == 429
    assert ("retry-after", "1") in refusal.headers
    gate.pause(first)
    third = gate.admit(request(3), service, 1.0)
    assert third.headers == ()
    gate.settle(request(1), first, finished(1))
    assert isinstance(gate.admit(request(4), service, 1.0), Refusal)


def test_later_attempts_are_neither_refused_nor_charged():
    gate, service = gate_of(), config(limits=RateLimits(requests_per_minute=1, concurrent_requests=1))
    first = gate.admit(request(1), service, 0.0)
    for _ in range(3):
        gate.pause(first)
        gate.resume(first)
    gate.settle(request(1), first, finished(1))
    (counts,) = gate.usage._services[CHAT].values()
    assert (counts.requests, counts.in_flight) == (1, 0)


def test_each_of_several_answers_counts_and_the_mean_is_that_of_one_answer():
    gate, service = gate_of(), config(limits=RateLimits(tokens_per_minute=1000))
    first = request(1, max_tokens=50, choices=8)
    admitted = gate.admit(first, service, 0.0)
    assert remaining(admitted) == 1000 - 10 - 8 * 50
    gate.settle(first, admitted, finished(1, prompt_tokens=10, completion_tokens=8 * 30))
    again = gate.admit(request(2, max_tokens=None, choices=2), service, 1.0)
    assert remaining(again) == 1000 - (10 + 8 * 30) - (10 + 2 * 30)


def test_the_estimate_of_a_request_without_a_report_stands():
    gate, service = gate_of(), config(limits=RateLimits(tokens_per_minute=100, concurrent_requests=1))
    gate.unreported(gate.admit(request(1), service, 0.0), finished(1, status=None))
    assert remaining(gate.admit(request(2), service, 1.0)) == 40


def test_output_beyond_the_estimate_is_charged_as_it_comes_and_once():
    gate, service = gate_of(), config(limits=RateLimits(tokens_per_minute=1000))
    now = time.monotonic()
    first = gate.admit(request(1, max_tokens=20), service, now)
    for output, left in ((10, 970), (120, 870), (119, 870), (220, 770)):
        gate.progressed(first, output)
        probe = gate.admit(request(2, prompt_tokens=0, max_tokens=0), service, now)
        assert remaining(probe) == left
    gate.settle(request(1), first, finished(1, prompt_tokens=10, completion_tokens=250))
    assert remaining(gate.admit(request(3, prompt_tokens=0, max_tokens=0), service, now)) == 740


def test_an_adopted_request_is_in_flight_and_charged_only_for_what_follows():
    gate, service = gate_of(), config(limits=RateLimits(tokens_per_minute=1000, concurrent_requests=1))
    adopted = gate.adopt(request(1, prompt_tokens=900))
    assert isinstance(gate.admit(request(2), service, 0.0), Refusal)
    gate.settle(request(1), adopted, finished(1, prompt_tokens=900, completion_tokens=70))
    assert remaining(gate.admit(request(3, prompt_tokens=0, max_tokens=0), service, time.monotonic())) == 930


def test_a_request_that_another_picker_admitted_is_charged_and_never_refused():
    gate, service = gate_of(), config(limits=RateLimits(requests_per_minute=1, concurrent_requests=1))
    gate.admit(request(1), service, 0.0)
    moved = gate.admit(request(2), service, 0.0, always=True)
    assert dict(moved.headers)["x-ratelimit-remaining-requests"] == "0"
    gate.settle(request(2), moved, finished(2))
    assert gate.admit(request(3), service, 0.0).status == 429  # the first one is still in flight


def test_an_adopted_request_is_not_charged_for_what_it_had_generated():
    gate, service = gate_of(), config(limits=RateLimits(tokens_per_minute=1000))
    adopted = gate.adopt(request(1, prompt_tokens=900), tokens=500)
    gate.progressed(adopted, 520)
    gate.settle(request(1), adopted, finished(1, prompt_tokens=900, completion_tokens=570))
    assert remaining(gate.admit(request(3, prompt_tokens=0, max_tokens=0), service, time.monotonic())) == 930


def test_the_estimate_follows_the_tenants_answers():
    gate, service = gate_of(), config(limits=RateLimits(tokens_per_minute=100_000))
    for number in range(60):
        admitted = gate.admit(request(number, max_tokens=None), service, number * 100.0)
        gate.settle(request(number), admitted, finished(number, prompt_tokens=10, completion_tokens=40))
    answer = dict(gate.admit(request(99, max_tokens=None), service, 1e6).headers)
    assert answer["x-ratelimit-remaining-tokens"] == str(100_000 - 10 - 40)


def test_answers_of_unknown_length_teach_nothing():
    """A plain stream without usage is reported with 0 tokens."""
    gate, service = gate_of(), config(limits=RateLimits(tokens_per_minute=100_000))
    for number, tokens in enumerate((500, 0, 0)):
        admitted = gate.admit(request(number, max_tokens=None), service, 60.0 * number)
        gate.settle(request(number), admitted, finished(number, prompt_tokens=10, completion_tokens=tokens))
    answer = dict(gate.admit(request(9, max_tokens=None), service, 1e6).headers)
    assert answer["x-ratelimit-remaining-tokens"] == str(100_000 - 510)


def test_usage_is_counted_by_tenant_up_to_a_bound_and_all_others_together(monkeypatch):
    monkeypatch.setattr("inflight_gateway.tenants.usage.MAX_TENANTS", 2)
    gate = gate_with(secret(acme="ifk_1"))
    for number, tenant in enumerate(["acme", "named", "more-1", "more-2"]):
        admitted = gate.admit(request(number, tenant), config(named("named")), 0.0)
        report = finished(number, prompt_tokens=10, completion_tokens=2, cached_tokens=4)
        gate.settle(request(number), admitted, report)
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
    assert "more" not in said


def test_a_service_that_is_gone_leaves_no_metrics():
    gate = gate_of()
    admitted = gate.admit(request(1), config(), 0.0)
    gate.usage.forget(CHAT)
    gate.settle(request(1), admitted, finished(1))
    assert [sample for metric in gate.usage.collect() for sample in metric.samples if sample.labels] == []


def test_a_hundred_thousand_wrong_keys_leave_nothing_behind(caplog):
    gate = gate_with(secret(acme="ifk_1"))
    with caplog.at_level(logging.DEBUG):
        for number in range(100_000):
            assert gate.check(bearer(f"ifk_{number}x"), config()).status == 401
    assert caplog.text == ""
    assert len(gate.usage._services[CHAT]) == 1
