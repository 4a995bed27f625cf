"""Histograms, throughput, health and what /metrics shows."""

import asyncio
import re
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple
from prometheus_client import Histogram as ReferenceHistogram
from prometheus_client.parser import text_string_to_metric_families

from e2e import cluster
from inflight_engine import buckets
from inflight_engine.messages import StepStats
from inflight_engine.server.health import health_status
from inflight_engine.server.histogram import Histogram
from inflight_engine.server.phase import Phase
from inflight_engine.server.throughput import Throughput
from tests.engine.server.fake_engine import until

VLLM = {
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:cache_config_info": "gauge",
    "vllm:prefix_cache_queries_total": "counter",
    "vllm:prefix_cache_hits_total": "counter",
    "vllm:num_preemptions_total": "counter",
    "vllm:prompt_tokens_total": "counter",
    "vllm:generation_tokens_total": "counter",
    "vllm:request_success_total": "counter",
    "vllm:time_to_first_token_seconds": "histogram",
    "vllm:inter_token_latency_seconds": "histogram",
    "vllm:request_time_per_output_token_seconds": "histogram",
    "vllm:e2e_request_latency_seconds": "histogram",
    "vllm:request_queue_time_seconds": "histogram",
    "vllm:iteration_tokens_total": "histogram",
}
OWN = {
    "inflight_max_num_seqs": "gauge",
    "inflight_max_num_seqs_capacity": "gauge",
    "inflight_max_num_batched_tokens": "gauge",
    "inflight_max_num_batched_tokens_capacity": "gauge",
    "inflight_runtime_config_revision": "gauge",
    "inflight_waiting_prompt_tokens": "gauge",
    "inflight_predicted_queue_seconds": "gauge",
    "inflight_step_duration_seconds": "histogram",
    "inflight_schedule_duration_seconds": "histogram",
    "inflight_slots_wasted_ratio": "gauge",
    "inflight_admission_rejections_total": "counter",
    "inflight_requests_cancelled_total": "counter",
    "inflight_draining": "gauge",
    "inflight_engine_restarts_total": "counter",
    "inflight_requests_resubmitted_total": "counter",
    "inflight_swapped_blocks": "gauge",
    "inflight_class_requests_waiting": "gauge",
    "inflight_class_requests_finished_total": "counter",
}


async def page(fake):
    answer = await fake.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return answer.text


async def samples(fake):
    """Sample values by name, for the samples whose only label is the model's name."""
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(await page(fake))
        for sample in family.samples
        if set(sample.labels) == {"model_name"}
    }


async def test_every_promised_metric_is_there_with_its_type_help_and_model_name(make_fake):
    text = await page(await make_fake())
    types = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE"))
    assert types == VLLM | OWN
    assert {line.split()[2] for line in text.splitlines() if re.match("# HELP [^ ]+ [^ ]", line)} == set(types)
    for family in text_string_to_metric_families(text):
        assert family.samples, family.name
        for sample in family.samples:
            assert sample.labels["model_name"] == "fake", sample
            extra = {
                "vllm:cache_config_info": {"block_size", "num_gpu_blocks"},
                "vllm:request_success_total": {"finished_reason"},
                "inflight_admission_rejections_total": {"reason"},
                "inflight_class_requests_waiting": {"class"},
                "inflight_class_requests_finished_total": {"class"},
            }.get(sample.name, {"le"} if sample.name.endswith("_bucket") else set())
            assert set(sample.labels) == {"model_name"} | extra, sample


def promtool_findings(text):
    promtool = shutil.which("promtool") or str(cluster.promtool())
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    return (checked.stdout + checked.stderr).splitlines()


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_promtool_finds_only_what_vllms_own_names_bring(make_fake):
    text = await page(await make_fake())
    found = await asyncio.to_thread(promtool_findings, text)
    inherent = re.compile(
        "vllm:[^ ]+ metric names should not contain ':'"
        '|vllm:iteration_tokens_total non-counter metrics should not have "_total" suffix'
    )
    assert len(found) >= len(VLLM)
    assert [line for line in found if not inherent.fullmatch(line)] == []


def test_buckets_reach_where_vllms_do_not():
    assert sum(bound < 0.010 for bound in buckets.INTER_TOKEN) >= 3
    assert sum(bound < 0.3 for bound in buckets.QUEUE_TIME) >= 5


async def test_one_answer_counts_once_everywhere(make_fake):
    fake = await make_fake()
    call = asyncio.create_task(fake.post("/v1/completions", prompt="hello"))
    await until(lambda: fake.engine.requests)
    fake.engine.report(admitted=[(0, 1)], tokens={1: 97}, num_running=1, num_prefill_tokens=5, step_seconds=0.01)
    fake.engine.report(tokens={1: 98}, num_running=1, num_decode_tokens=1, step_seconds=0.01, kv_usage=0.25)
    fake.engine.report(tokens={1: 99}, finished=[(0, "length")], num_decode_tokens=1, step_seconds=0.01)
    await call
    seen = await samples(fake)
    assert seen["vllm:prompt_tokens_total"] == 5
    assert seen["vllm:generation_tokens_total"] == 3
    assert seen["vllm:inter_token_latency_seconds_count"] == 2
    assert 0 <= seen["vllm:inter_token_latency_seconds_sum"] < 5
    assert seen["vllm:iteration_tokens_total_sum"] == 7
    for name in (
        "vllm:time_to_first_token_seconds",
        "vllm:e2e_request_latency_seconds",
        "vllm:request_queue_time_seconds",
        "vllm:request_time_per_output_token_seconds",
    ):
        assert seen[f"{name}_count"] == 1, name
    assert seen["inflight_step_duration_seconds_count"] == 3
    assert 'vllm:request_success_total{finished_reason="length",model_name="fake"} 1.0' in await page(fake)


async def test_wasted_slots_are_empty_ones_while_requests_wait(make_fake):
    fake = await make_fake()
    for waiting, running, expected in ((2, 3, 0.25), (0, 3, 0.0), (2, 4, 0.0)):
        fake.engine.report(num_waiting=waiting, num_running=running)
        await until(lambda wanted=(running, waiting): astuple(fake.service.stats)[:2] == wanted)
        assert (await samples(fake))["inflight_slots_wasted_ratio"] == expected


async def test_predicted_queue_is_waiting_tokens_over_the_measured_rate(make_fake):
    fake = await make_fake()
    fake.engine.report(num_prefill_tokens=90, num_decode_tokens=10, step_seconds=0.1, waiting_prompt_tokens=500)
    fake.engine.report(num_decode_tokens=1, step_seconds=0.1, waiting_prompt_tokens=500)
    await until(lambda: fake.service.stats.num_decode_tokens == 1)
    assert (await samples(fake))["inflight_predicted_queue_seconds"] == pytest.approx(0.5)


BOUNDS = st.lists(st.floats(0.001, 100), min_size=1, max_size=8, unique=True).map(sorted)


@given(BOUNDS, st.lists(st.tuples(st.floats(0, 200), st.integers(1, 3))))
def test_histogram_counts_as_prometheus_clients_own(bounds, observations):
    ours, reference = Histogram(bounds), ReferenceHistogram("reference", "-", buckets=bounds, registry=None)
    for value, count in observations:
        ours.observe(value, count)
        for _ in range(count):
            reference.observe(value)
    (family,) = reference.collect()
    expected = {s.labels["le"]: s.value for s in family.samples if s.name.endswith("_bucket")}
    assert dict(ours.buckets()) == expected
    assert ours.sum == pytest.approx(sum(s.value for s in family.samples if s.name.endswith("_sum")))


def stats(prefill, decode, seconds):
    return StepStats(0, 0, 0, 0.0, 0, 0, 0, 0, prefill, decode, seconds, 0.0)


def test_throughput_follows_a_change_of_speed_within_its_half_lives():
    throughput = Throughput()
    assert throughput.seconds_for(100) == 0.0
    for _ in range(300):
        throughput.add(stats(100, 0, 0.1))
    assert throughput.seconds_for(1000) == pytest.approx(1.0)
    for _ in range(300):
        throughput.add(stats(100, 0, 0.2))
    assert throughput.seconds_for(1000) == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize(
    ("phase", "draining", "stalled", "expected"),
    [
        (Phase.LOADING, False, False, (200, "loading")),
        (Phase.READY, False, False, (200, "ok")),
        (Phase.READY, False, True, (503, "stalled")),
        (Phase.READY, True, False, (200, "draining")),
        (Phase.READY, True, True, (503, "stalled")),
        (Phase.RESTARTING, False, False, (200, "restarting")),
        (Phase.FAILED, True, False, (503, "failed")),
    ],
)
def test_health_is_progress_or_nothing_to_do(phase, draining, stalled, expected):
    assert health_status(phase, draining=draining, stalled=stalled) == expected


FULL_NAMES = [
    "vllm:time_to_first_token_seconds_bucket",
    "vllm:num_requests_running",
    "vllm:prompt_tokens_total",
    "inflight_class_requests_waiting",
]


@pytest.mark.parametrize(
    ("asked", "lines"),
    [
        (FULL_NAMES, FULL_NAMES),
        (["vllm:prompt_tokens"], ["vllm:prompt_tokens_total"]),
        (["vllm:time_to_first_token_seconds_count"], ["vllm:time_to_first_token_seconds_count"]),
        (
            ["vllm:time_to_first_token_seconds"],
            [f"vllm:time_to_first_token_seconds_{part}" for part in ("bucket", "count", "sum")],
        ),
        (["vllm:time_to_first_token", "other", ""], []),
    ],
)
async def test_metrics_page_has_only_the_families_or_samples_that_were_asked_for(make_fake, asked, lines):
    fake = await make_fake()
    answer = await fake.http.get("/metrics", params={"name[]": asked})
    assert answer.status_code == 200
    samples = [line for line in answer.text.splitlines() if not line.startswith("#")]
    assert {re.split("[{ ]", line)[0] for line in samples} == set(lines)
    assert set(samples) <= set((await page(fake)).splitlines())
    assert answer.text.count("# TYPE") == len(asked if lines else [])
