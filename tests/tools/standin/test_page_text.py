"""The pages of fake engines are those of the real engine, moved on."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from inflight_operator.observe.metrics import parse_metrics
from tools.standin.page_text import CAPACITY, PROFILE_REQUESTS, REQUESTS_PER_SECOND, EngineState, Pages

SERVED_PROFILE = PROFILE_REQUESTS / REQUESTS_PER_SECOND


@pytest.fixture(scope="module")
def pages():
    return Pages()


def test_an_engine_that_has_served_the_profile_shows_the_real_engines_page(pages):
    shown = pages.page("").render(EngineState(0.0), SERVED_PROFILE).decode().splitlines()
    for line, real in zip(shown, pages.profile.splitlines(), strict=True):
        if line != real:
            series, _, value = line.rpartition(" ")
            assert series == real.rpartition(" ")[0]
            live = series.startswith(("inflight_max_num", "inflight_runtime", "vllm:num_requests"))
            assert live or float(value) == pytest.approx(float(real.rpartition(" ")[2]), abs=0.001)


def test_the_operator_reads_load_limits_and_latencies_under_the_services_targets(pages):
    state = EngineState(0.0, waiting=3, max_num_seqs=5, revision=7)
    sample = parse_metrics(pages.page("").render(state, SERVED_PROFILE).decode(), 1.0)
    assert (sample.waiting, sample.running, sample.revision) == (3, 5, 7)
    assert sample.itl.percentile(0.95) < 0.05
    assert sample.tpot.percentile(0.95) < 0.05
    assert sample.ttft.percentile(0.95) < 2


def test_histograms_move_and_never_fall(pages):
    page, state = pages.page(""), EngineState(0.0)
    earlier = parse_metrics(page.render(state, 100.0).decode(), 100.0)
    for second in range(101, 111):
        later = parse_metrics(page.render(state, float(second)).decode(), float(second))
        moved = later.itl.since(earlier.itl)
        assert 0 < moved.count < later.itl.count
        assert list(later.itl.counts) == sorted(later.itl.counts)
        assert later.generation_tokens > earlier.generation_tokens
        earlier = later


def test_an_engine_without_a_queue_has_free_slots(pages):
    idle = parse_metrics(pages.page("").render(EngineState(0.0), 1.0).decode(), 1.0)
    assert idle.waiting == 0
    assert 0 < idle.running < CAPACITY.max_num_seqs


def test_a_scrape_that_names_samples_gets_these_alone_and_whole_families_by_their_name(pages):
    query = "name[]=vllm:num_requests_waiting&name[]=vllm:inter_token_latency_seconds&name[]=vllm:prompt_tokens_total"
    text = pages.page(query).render(EngineState(0.0), 10.0).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert set(families) == {"vllm:num_requests_waiting", "vllm:inter_token_latency_seconds", "vllm:prompt_tokens"}
    assert {sample.name.rpartition("_")[2] for sample in families["vllm:inter_token_latency_seconds"].samples} == {
        "bucket",
        "count",
        "sum",
    }


def test_percent_encoded_names_are_the_same_names(pages):
    plain = pages.page("name[]=vllm:num_requests_waiting").render(EngineState(0.0), 1.0)
    assert pages.page("name%5B%5D=vllm%3Anum_requests_waiting").render(EngineState(0.0), 1.0) == plain
