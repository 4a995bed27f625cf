"""Metrics pages for tests, written by our engine's own exporter or recorded, and histograms.

`vllm_0_32.txt` is the page of vLLM 0.32.0 with the plugin after a few requests: samples of `vllm:` and `inflight_`
without `_created`, and of each histogram the last bucket.
"""

import random
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from inflight_base.page.histogram import Histogram
from inflight_cost.model import CostModel
from inflight_engine.messages import EngineReady, Loading, StepCost, StepStats, WeightsRead
from inflight_engine.runner_info import RunnerInfo
from inflight_engine.server.admission.demand import Demand, Load
from inflight_engine.server.admission.peer_reads import PeerReads
from inflight_engine.server.requests.counts import Counts
from inflight_engine.server.telemetry.page import EngineMetrics, Gauges
from inflight_settings.limits import Limits
from inflight_settings.scheduling import ServiceClass

DIGEST = "sha256:" + "1" * 64
CACHE_PROBLEM = "its disk is full"


def engine_page(names=None, observations=1, seed=0):
    """Returns the page of an engine with limits 48 and 1024 (capacity 64 and 2048, revision 7), 5 requests running, 2
    waiting with 300 prompt tokens. With `names`, only these samples, as prometheus_client's servers answer
    `?name[]=`."""
    stats = StepStats(
        num_running=5,
        num_waiting=2,
        waiting_prompt_tokens=300,
        kv_usage=0.5,
        num_preemptions=3,
        num_tier_blocks=0,
        prefix_queries=0,
        prefix_hits=0,
        num_prefill_tokens=100,
        num_decode_tokens=7,
        step_seconds=0.2,
        schedule_seconds=0.001,
    )
    facts = {"digest": DIGEST, "cache_problem": CACHE_PROBLEM, "weights_seconds": 0.5}
    runner = RunnerInfo(10, 16, 1024, 1, 100, "cpu", "float32", "eager", 1.0, **facts)
    ready = EngineReady(Limits(64, 2048), runner, WeightsRead(peer_bytes=6, source_bytes=2, peer_failures=1))
    load = Load(stats, Limits(48, 1024), ready, num_requests=7, queued_tokens=300)
    gauges = Gauges(load, {"interactive": 2, "batch": 0}, draining=False, revision=7, loading=Loading(3, 4, 2.0))
    counts, demand = Counts([ServiceClass("interactive"), ServiceClass("batch")]), Demand()
    metrics = EngineMetrics("m", counts, demand, lambda: gauges)
    metrics.peer_reads = PeerReads(None, (), lambda: stats)
    numbers = random.Random(seed)
    for _ in range(observations):
        counts.time_to_first_token.observe(numbers.expovariate(2))
        counts.inter_token_latency.observe(numbers.expovariate(20))
        counts.time_per_output_token.observe(numbers.expovariate(20))
        counts.step(stats, None)
        demand.step(stats)
        counts.generation_tokens += 7
    demand.step_cost = StepCost(
        CostModel(0.005, 1e-5, 3e-5, 4e-8, 1e-9, curve=((1.0, 0.001), (512.0, 0.01))), 0.05, 900
    )
    demand.output_lengths.generated(0, 7)
    demand.output_lengths.ended(7)
    registry = CollectorRegistry(auto_describe=True)
    registry.register(metrics)
    return generate_latest(registry if names is None else registry.restricted_registry(names)).decode()


def vllm_page(*, plugin=True):
    """Returns the page of a vLLM server, with the plugin or without."""
    lines = Path(__file__).with_name("vllm_0_32.txt").read_text().splitlines(keepends=True)
    return "".join(line for line in lines if plugin or line.startswith("vllm:"))


BOUNDS = (0.1, 0.2, 0.5, 1.0, float("inf"))


def histogram(*values):
    """Returns the cumulative histogram of `values`."""
    return Histogram(BOUNDS, tuple(sum(value <= bound for value in values) for bound in BOUNDS), sum(values))
