"""Reading /metrics pages: ours, vLLM's, and what is neither."""

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from inflight_engine.messages import EngineReady, StepStats
from inflight_engine.scheduling.config import ServiceClass
from inflight_engine.scheduling.limits import Limits as EngineLimits
from inflight_engine.server.metrics import EngineMetrics, Gauges
from inflight_operator.observe.metrics import MetricsError, parse_metrics
from tests.operator.fakes import exposition
from tests.operator.model_engine import ModelEngine

VLLM_PAGE = """
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting{engine="1",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:num_preemptions_total{engine="0",model_name="m"} 5.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="m"} 2.0
vllm:time_to_first_token_seconds_bucket{engine="1",le="0.1",model_name="m"} 3.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 4.0
vllm:time_to_first_token_seconds_bucket{engine="1",le="+Inf",model_name="m"} 6.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 1.5
process_open_fds 20
"""


def test_what_is_written_is_read():
    engine = ModelEngine()
    engine.add(100, 20)
    engine.add(50, 5)
    engine.run_until(5.0)
    engine.add(10, 1)
    sample = replace(engine.sample(), revision=4, max_num_seqs_capacity=64, max_num_batched_tokens_capacity=2048)
    assert parse_metrics(exposition(sample), sample.time) == sample


def test_the_engine_s_own_page_is_read_whole():
    """The real exporter of our engine: every name the operator wants is there."""
    stats = StepStats(
        num_running=5,
        num_waiting=2,
        waiting_prompt_tokens=300,
        kv_usage=0.5,
        num_preemptions=0,
        num_swapped_blocks=0,
        prefix_queries=0,
        prefix_hits=0,
        num_prefill_tokens=100,
        num_decode_tokens=7,
        step_seconds=0.2,
        schedule_seconds=0.001,
    )
    ready = EngineReady(EngineLimits(64, 2048), 10, 16, 1024, 1, 100, "cpu", "float32", "eager", 1.0)
    gauges = Gauges(
        stats=stats,
        limits=EngineLimits(48, 1024, 7),
        ready=ready,
        waiting=2,
        queued_by_class={"interactive": 2, "batch": 0},
        queued_tokens=300,
        draining=False,
    )
    classes = [ServiceClass("interactive"), ServiceClass("batch")]
    metrics = EngineMetrics("m", classes, lambda: gauges)
    metrics.time_to_first_token.observe(0.2)
    metrics.inter_token_latency.observe(0.02)
    metrics.time_per_output_token.observe(0.02)
    metrics.step(stats)
    registry = CollectorRegistry()
    registry.register(metrics)
    sample = parse_metrics(generate_latest(registry).decode(), 1.0)
    assert (sample.max_num_seqs, sample.max_num_batched_tokens, sample.revision) == (48, 1024, 7)
    assert (sample.max_num_seqs_capacity, sample.max_num_batched_tokens_capacity) == (64, 2048)
    assert (sample.running, sample.waiting, sample.waiting_prompt_tokens) == (5, 2, 300)
    for histogram in (sample.ttft, sample.tpot, sample.itl, sample.step_tokens):
        assert histogram.count == 1


def test_a_vllm_page_is_read_without_what_only_we_tell():
    sample = parse_metrics(VLLM_PAGE, 7.0)
    assert (sample.time, sample.running, sample.waiting, sample.kv_usage) == (7.0, 7, 3, 0.75)
    assert sample.preemptions == 5
    assert sample.ttft.bounds == (0.1, float("inf"))
    assert sample.ttft.counts == (5.0, 10.0)
    assert sample.max_num_seqs is None
    assert sample.revision is None
    assert sample.waiting_prompt_tokens is None


@pytest.mark.parametrize("page", ["", "<html>502</html>", "process_open_fds 20\n"])
def test_a_page_of_something_else_is_refused_by_name(page):
    with pytest.raises(MetricsError, match="vllm:num_requests_running is missing"):
        parse_metrics(page, 0.0)


@pytest.mark.parametrize("value", ["+Inf", "NaN"])
def test_a_value_that_is_no_finite_number_counts_as_not_told(value):
    sample = parse_metrics(f"{VLLM_PAGE}\ninflight_max_num_seqs {value}\n", 0.0)
    assert sample.max_num_seqs is None
    assert sample.running == 7


def test_a_broken_page_is_refused():
    with pytest.raises(MetricsError, match="not Prometheus text"):
        parse_metrics('vllm:num_requests_running{model_name="m"} many\n', 0.0)
