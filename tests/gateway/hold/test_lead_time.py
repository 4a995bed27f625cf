"""How long before its deadline a held request has to start."""

import pytest

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.hold.service_queue import LeadTime
from inflight_gateway.pick.picker import Picker
from inflight_gateway.types import Endpoint, Pick, RequestView
from tests.gateway.pick.loads import CONFIG, NOW, load, request

SERVICE = ServiceKey("default", "chat")


def prefill_s(tokens):
    """Seconds of a prompt whose tokens attend to all before them."""
    return 3e-5 * tokens + 5e-10 * tokens**2


def learned(lengths, seconds):
    lead = LeadTime()
    for tokens in lengths:
        pick = Pick((Endpoint("10.0.0.1:8000", "a"),), "", predicted_ttft_s=seconds(tokens), prefill_s=seconds(tokens))
        lead.started(RequestView("a", SERVICE, 0.0, prompt_tokens=tokens), pick)
    return lead


def start(lead, tokens):
    return lead.latest_start(RequestView("b", SERVICE, 0.0, prompt_tokens=tokens, deadline=10.0), None)


@pytest.mark.parametrize("tokens", [500, 5_000, 60_000])
def test_tokens_of_long_prompts_are_known_to_take_longer(tokens):
    lead = learned([1000, 20_000, 4000, 9000] * 25, prefill_s)
    assert 10.0 - start(lead, tokens) == pytest.approx(prefill_s(tokens), rel=0.02)


@pytest.mark.parametrize(
    ("lengths", "cached"),
    [([100] * 19 + [8000], 0), ([50, 500, 4000], 0), ([2000], 1950)],
    ids=("rare", "mixed", "cached"),
)
def test_a_prompts_lead_is_its_predicted_ttft_whatever_the_lengths_of_the_others(lengths, cached):
    lead = LeadTime()
    for tokens in lengths * 30:
        asked = request(prompt_tokens=tokens)
        busy = load("a", running=48, kv_utilization=0.5, cached_tokens=min(cached, tokens - 1))
        lead.started(asked, Picker().pick(asked, CONFIG, [busy], NOW))
    for tokens in (100, 2000, 8000):
        found = Picker().pick(request(prompt_tokens=tokens), CONFIG, [load("a", running=48, kv_utilization=0.5)], NOW)
        assert lead.wait_s + 10.0 - start(lead, tokens) == pytest.approx(found.predicted_ttft_s, rel=0.3)


def test_prompts_of_one_length_tell_nothing_about_others():
    lead = learned([2000] * 200, lambda tokens: 3e-5 * tokens)
    assert 10.0 - start(lead, 4000) == pytest.approx(0.12, rel=0.01)


def test_a_prompt_never_starts_after_its_deadline():
    lead = learned([1000, 20_000] * 50, lambda tokens: 1e-8 * tokens**2)
    assert start(lead, 10) <= 10.0


def test_attempts_that_read_their_prompt_teach_nothing():
    lead = learned([1000] * 50, prefill_s)
    before = start(lead, 4000)
    read = Pick((Endpoint("10.0.0.1:8000", "a"),), "", 0.5, cached_tokens=3999, prefill_s=0.04)
    for _ in range(50):
        lead.started(RequestView("a", SERVICE, 0.0, prompt_tokens=4000, attempt=2, handed_over=True), read)
    assert start(lead, 4000) == before
