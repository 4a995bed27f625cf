"""Histograms, throughput, health and what /metrics shows."""

import asyncio
import re
import shutil
import subprocess
import threading
from dataclasses import replace
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple
from prometheus_client import Histogram as ReferenceHistogram
from prometheus_client.parser import text_string_to_metric_families

from inflight_cost.model import CostModel, StepWork
from inflight_engine import buckets
from inflight_engine.messages import StepCost, StepReport
from inflight_engine.request import FinishReason
from inflight_engine.server.admission.step_costs import StepCosts
from inflight_engine.server.engine.phase import Phase
from inflight_engine.server.engine.session import NO_STATS
from inflight_engine.server.http.health import health_status
from inflight_engine.server.requests.counts import Histogram
from inflight_fit.online import MeasuredCost, OnlineFit
from inflight_settings.engine import EngineConfig
from tests.engine.server.fake_engine import READY, until
from tools import localcluster as cluster

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
    "vllm:request_prefill_time_seconds": "histogram",
    "vllm:request_decode_time_seconds": "histogram",
    "vllm:request_inference_time_seconds": "histogram",
    "vllm:request_prompt_tokens": "histogram",
    "vllm:request_generation_tokens": "histogram",
    "vllm:request_params_max_tokens": "histogram",
    "vllm:request_params_n": "histogram",
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
    "inflight_asleep": "gauge",
    "inflight_draining": "gauge",
    "inflight_engine_restarts_total": "counter",
    "inflight_step_out_of_memory_total": "counter",
    "inflight_forced_tokens_total": "counter",
    "inflight_requests_resubmitted_total": "counter",
    "inflight_peer_loaded_blocks_total": "counter",
    "inflight_peer_failed_reads_total": "counter",
    "inflight_peer_late_requests_total": "counter",
    "inflight_tier_blocks": "gauge",
    "inflight_tier_stored_bytes_total": "counter",
    "inflight_tier_loaded_bytes_total": "counter",
    "inflight_tier_hit_blocks_total": "counter",
    "inflight_tier_failed_blocks_total": "counter",
    "inflight_tier_dropped_blocks_total": "counter",
    "inflight_tier_bytes_per_second": "gauge",
    "inflight_disk_refused_loads_total": "counter",
    "inflight_weights_seconds": "gauge",
    "inflight_kv_cache_tokens": "gauge",
    "inflight_arrived_requests_total": "counter",
    "inflight_arrived_prompt_tokens_total": "counter",
    "inflight_arrived_prompt_tokens_squared_total": "counter",
    "inflight_class_requests_waiting": "gauge",
    "inflight_class_requests_finished_total": "counter",
    "inflight_step_work_total": "counter",
    "inflight_step_predicted_seconds_total": "counter",
    "inflight_process_resident_memory_bytes": "gauge",
}


MEASURED = {
    "inflight_step_cost_seconds",
    "inflight_step_cost_error_ratio",
    "inflight_step_cost_steps",
    "inflight_output_tokens_mean",
    "inflight_output_tokens_second_moment",
}
"""Metrics that exist once an engine has done some steps and ended a request; `inflight_step_cost_curve_seconds` may be,
too."""


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
    tiers = EngineConfig("fake", swap_space=1, disk_space=1, disk_path="/disk")
    text = await page(await make_fake(engine=tiers))
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
                "inflight_disk_refused_loads_total": {"reason"},
                "inflight_class_requests_waiting": {"class"},
                "inflight_class_requests_finished_total": {"class"},
                "inflight_step_work_total": {"term"},
                "inflight_step_predicted_seconds_total": {"term"},
                "inflight_process_resident_memory_bytes": {"process"},
            }.get(sample.name, {"le"} if sample.name.endswith("_bucket") else set())
            extra |= {"tier"} if sample.name.startswith("inflight_tier_") else set()
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


@pytest.mark.parametrize("target", [0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.075, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5])
def test_a_round_target_has_a_boundary_of_its_own_so_the_share_within_it_is_exact(target):
    assert target in buckets.TIME_PER_OUTPUT_TOKEN
    assert round(target * 10, 3) in buckets.TIME_TO_FIRST_TOKEN or target in (0.06, 0.08)
    assert max(b / a for a, b in pairwise(buckets.TIME_PER_OUTPUT_TOKEN) if 0.02 <= a < 0.1) <= 1.25


def test_every_boundary_of_gaps_between_tokens_is_one_of_their_means():
    assert set(buckets.INTER_TOKEN) <= set(buckets.TIME_PER_OUTPUT_TOKEN)


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
        await until(lambda wanted=(running, waiting): astuple(fake.service.session.stats)[:2] == wanted)
        assert (await samples(fake))["inflight_slots_wasted_ratio"] == expected


COST = CostModel(0.01, 0.001, 0.002, 1e-6, 1e-7)


async def test_predicted_queue_is_what_steps_full_of_waiting_tokens_cost(make_fake):
    fake = await make_fake()
    call = asyncio.create_task(fake.post("/v1/completions", prompt="x" * 50))
    await until(lambda: fake.engine.requests)
    fake.engine.report(num_decode_tokens=4, decode_kv_tokens=2000, num_prefill_tokens=60, waiting_prompt_tokens=150)
    fake.engine.report(waiting_prompt_tokens=150)  # outside a step: what decodes has not changed
    await until(lambda: fake.service.session.stats == msgspec.structs.replace(NO_STATS, waiting_prompt_tokens=150))
    assert (await samples(fake))["inflight_predicted_queue_seconds"] == 0
    fake.service.admission.demand.step_cost = StepCost(COST, 0.03, 100.0)
    # 64 tokens in a step, 4 of them decodes; a prompt's tokens attend to 25 each.
    expected = 2 * COST.seconds(StepWork(4, 60, 2000, 60 * 25)) + COST.seconds(StepWork(4, 30, 2000, 30 * 25))
    assert (await samples(fake))["inflight_predicted_queue_seconds"] == pytest.approx(expected)
    fake.engine.answer(0, "x")
    await call


async def test_predicted_queue_has_copies_to_and_from_host_memory_as_recent_prompts_had(make_fake):
    fake = await make_fake()
    call = asyncio.create_task(fake.post("/v1/completions", prompt="x" * 50))
    await until(lambda: fake.engine.requests)
    fake.engine.report(num_prefill_tokens=40, copied_tokens=100)
    fake.engine.report(num_prefill_tokens=10, copied_tokens=50, waiting_prompt_tokens=64)
    await until(lambda: fake.service.session.stats.waiting_prompt_tokens == 64)
    cost = replace(COST, copied_token_s=0.003)
    fake.service.admission.demand.step_cost = StepCost(cost, 0.03, 100.0)
    copied = 3 * 64  # 150 tokens beside 50 that were computed
    expected = cost.seconds(StepWork(0, 64, 0, 64 * 25, copied))
    assert (await samples(fake))["inflight_predicted_queue_seconds"] == pytest.approx(expected, rel=0.01)
    fake.engine.answer(0, "x")
    await call


async def test_predicted_queue_is_no_shorter_than_what_requests_wait_for_the_disk(make_fake):
    fake = await make_fake()
    call = asyncio.create_task(fake.post("/v1/completions", prompt="x" * 50))
    await until(lambda: fake.engine.requests)
    fake.engine.report(disk_wait_seconds=1.5)
    await until(lambda: fake.service.session.stats.disk_wait_seconds == 1.5)
    assert (await samples(fake))["inflight_predicted_queue_seconds"] == 1.5
    fake.engine.answer(0, "x")
    await call


@pytest.mark.parametrize("fitted", [True, False])
async def test_predicted_queue_counts_the_steps_until_running_requests_have_ended(make_fake, fitted):
    fake = await make_fake()
    if fitted:
        fake.service.admission.demand.step_cost = StepCost(CostModel(0.02, 0.0, 0.0, 0.0, 0.0), 0.03, 100.0)
    else:
        for _ in range(400):
            fake.engine.report(num_decode_tokens=1, step_seconds=0.02)
    calls = [asyncio.create_task(fake.post("/v1/completions", prompt="x", max_tokens=8)) for _ in range(7)]
    await until(lambda: len(fake.engine.requests) == 7)
    fake.engine.report(admitted=[(0, 0)])
    for _ in range(8):
        fake.engine.report(tokens={0: 65}, num_decode_tokens=1, step_seconds=0.02)
    fake.engine.report(finished=[(0, FinishReason.LENGTH)])
    fake.engine.report(admitted=[(slot + 1, slot) for slot in range(4)], num_running=4, num_waiting=2)
    await until(lambda: fake.service.session.stats.num_waiting == 2)
    fake.service.admission.demand.estimate_at = 0.0
    # Two of four outputs of 8 tokens have to end, and one step computes the two prompts.
    predicted = (await samples(fake))["inflight_predicted_queue_seconds"]
    assert predicted == pytest.approx((2 * 8 / 4 + fitted) * 0.02, rel=0.1)
    for request_id in range(1, 7):
        fake.engine.answer(request_id, "x", slot=3)
    await asyncio.gather(*calls)


async def test_cost_of_steps_is_fitted_in_a_thread_of_this_process_and_sent_to_the_engine(make_fake, monkeypatch):
    threads = []
    compute = OnlineFit._compute

    def noting(self, rows):
        threads.append(threading.current_thread())
        return compute(self, rows)

    monkeypatch.setattr(OnlineFit, "_compute", noting)
    monkeypatch.setattr("inflight_fit.online._FIRST_INTERVAL", 0.0)
    fake = await make_fake()
    for tokens in range(1, 21):
        seconds = 0.02 + 0.001 * tokens
        fake.engine.report(num_prefill_tokens=tokens, prefill_context_tokens=tokens, step_seconds=seconds)
    await until(lambda: fake.engine.costs and fake.service.registry._step_costs._fitting is None)
    assert threads
    assert threading.main_thread() not in threads
    cost = fake.engine.costs[-1]
    assert cost == fake.service.admission.demand.step_cost
    assert cost.good
    assert cost.model.seconds(StepWork(0, 10, 0, 10)) == pytest.approx(0.03, rel=0.05)


async def test_a_fit_to_the_steps_of_a_lost_engine_process_is_dropped(make_fake, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()
    found = MeasuredCost(COST, 0.01, 20.0)

    def waiting(self, rows):
        begun.set()
        go_on.wait(10)
        return found

    monkeypatch.setattr(OnlineFit, "_compute", waiting)
    costs = []
    fits = StepCosts(costs.append)
    reports = [
        StepReport(
            number, [], b"", b"", [], [], msgspec.structs.replace(NO_STATS, num_prefill_tokens=9, step_seconds=0.1)
        )
        for number in range(20)
    ]
    for lost in (True, False):
        for number, report in enumerate(reports):
            fits.observe(report, 100.0 * (1 + lost) + number)
        assert await asyncio.to_thread(begun.wait, 10)
        if lost:
            fits.engine_ready(READY)
        go_on.set()
        await until(lambda: fits._fitting is None)
        assert len(costs) == (not lost)
        begun.clear()
        go_on.clear()


async def test_cost_of_steps_is_shown_once_it_is_measured(make_fake):
    fake = await make_fake()
    assert "inflight_step_cost" not in await page(fake)
    fake.service.admission.demand.step_cost = StepCost(replace(COST, curve=((1.0, 0.02), (64.0, 0.25))), 0.03, 100.5)
    text = await page(fake)
    for term, seconds in (
        *(("step", 0.01), ("decode_sequence", 0.001), ("prefill_token", 0.002), ("decode_kv_token", 1e-6)),
        *(("prefill_context_token", 1e-7), ("copied_token", 0.0)),
    ):
        assert f'inflight_step_cost_seconds{{model_name="fake",term="{term}"}} {seconds}\n' in text
    assert 'inflight_step_cost_curve_seconds{model_name="fake",tokens="64"} 0.25\n' in text
    shown = await samples(fake)
    assert (shown["inflight_step_cost_error_ratio"], shown["inflight_step_cost_steps"]) == (0.03, 100.5)


async def test_what_arrives_counts_when_it_is_taken_each_answer_once(make_fake):
    fake = await make_fake(max_queued_requests=3)
    call = asyncio.create_task(fake.post("/v1/completions", prompt="hello", n=2, max_tokens=1))
    await until(lambda: len(fake.engine.requests) == 2)
    refused = await fake.post("/v1/completions", prompt="hello", n=2)
    assert refused.status_code == 503
    other = asyncio.create_task(fake.post("/v1/completions", prompt="hey", max_tokens=1))
    await until(lambda: len(fake.engine.requests) == 3)
    shown = await samples(fake)
    assert shown["inflight_arrived_requests_total"] == 3
    assert shown["inflight_arrived_prompt_tokens_total"] == 5 + 5 + 3
    assert shown["inflight_arrived_prompt_tokens_squared_total"] == 25 + 25 + 9
    for request_id in list(fake.engine.requests):
        fake.engine.answer(request_id, "x")
    await asyncio.gather(call, other)


async def test_output_lengths_count_what_still_runs_and_what_was_cancelled(make_fake):
    fake = await make_fake()
    calls = [asyncio.create_task(fake.post("/v1/completions", prompt="a", max_tokens=90)) for _ in range(3)]
    await until(lambda: len(fake.engine.requests) == 3)
    fake.engine.report(admitted=[(0, 0), (1, 1), (2, 2)], tokens={0: 97, 1: 97, 2: 97}, num_running=3)
    for _ in range(9):
        fake.engine.report(tokens={0: 97, 1: 97, 2: 97}, num_decode_tokens=3, num_running=3)
    await until(lambda: fake.service.counts.generation_tokens == 30)
    assert "inflight_output_tokens_mean" not in await page(fake)
    fake.engine.report(finished=[(0, "length")], num_running=2)
    await calls[0]
    calls[1].cancel()
    for _ in range(10):
        fake.engine.report(tokens={2: 97}, num_decode_tokens=1, num_running=1)
    await until(lambda: fake.service.counts.generation_tokens == 40)
    # One of three ended at 10; of the others one was cut there, and one has 20 and runs.
    shown = await samples(fake)
    assert shown["inflight_output_tokens_mean"] == pytest.approx((10 + 20 + 20) / 3, rel=0.05)
    assert shown["inflight_output_tokens_second_moment"] == pytest.approx((100 + 400 + 400) / 3, rel=0.1)
    fake.engine.report(tokens={2: 97}, finished=[(2, "stop")])
    await calls[2]
    assert (await samples(fake))["inflight_output_tokens_mean"] == pytest.approx((10 + 21 + 21) / 3, rel=0.05)


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
