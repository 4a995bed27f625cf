import httpx
import pytest

from inflight_base.manifest.engines import EngineType
from inflight_base.page import reader
from inflight_kubectl.access.resources import Service
from inflight_kubectl.engines.engine_metrics import (
    READER,
    EngineReader,
    Tier,
    Tiers,
    figures,
    known_page,
    metrics_port,
    service_tiers,
    together,
)
from inflight_kubectl.output import Problem
from tests.kubectl.objects import body, pod

PAGE = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="chat"} 6.0
vllm:num_requests_waiting{model_name="chat"} 2.0
vllm:kv_cache_usage_perc{model_name="chat"} 0.25
vllm:generation_tokens_total{model_name="chat"} %d
vllm:num_preemptions_total{model_name="chat"} 1.0
inflight_max_num_seqs 169.0
inflight_max_num_seqs_capacity 256.0
inflight_max_num_batched_tokens 1342.0
vllm:time_to_first_token_seconds_bucket{le="0.1",model_name="chat"} %d
vllm:time_to_first_token_seconds_bucket{le="1.0",model_name="chat"} %d
vllm:time_to_first_token_seconds_bucket{le="+Inf",model_name="chat"} %d
"""


def test_a_page_gives_figures_of_what_happened_between_two_reads():
    pages = [(0.0, READER.read(PAGE % (100, 10, 10, 10))), (2.0, READER.read(PAGE % (400, 10, 20, 20)))]
    found = figures(pages)
    assert (found.running, found.waiting, found.kv) == (6, 2, 0.25)
    assert (found.max_num_seqs, found.max_num_batched_tokens) == (169, 1342)
    assert found.tokens_per_s == 150.0
    assert found.ttft_p95 == pytest.approx(0.955)
    assert found.tpot_p95 is None


TIERS = """vllm:cache_config_info{block_size="16",model_name="chat",num_gpu_blocks="9"} 1.0
inflight_tier_blocks{model_name="chat",tier="host"} 7.0
inflight_tier_blocks{model_name="chat",tier="disk"} 70.0
inflight_tier_bytes_per_second{model_name="chat",tier="host"} 4.6e+09
inflight_tier_bytes_per_second{model_name="chat",tier="disk"} 0.0
inflight_tier_hit_blocks_total{model_name="chat",tier="host"} 3.0
inflight_tier_hit_blocks_total{model_name="chat",tier="disk"} 2.0
inflight_tier_failed_blocks_total{model_name="chat",tier="disk"} 1.0
inflight_tier_dropped_blocks_total{model_name="chat",tier="disk"} 5.0
inflight_disk_refused_loads_total{model_name="chat",reason="stalled"} 4.0
inflight_disk_refused_loads_total{model_name="chat",reason="late"} 0.0
"""


def test_the_tiers_of_an_engine_are_those_of_its_page():
    host = Tier("host", 7, 48, 4.6e9, 0, 0, {})
    disk = Tier("disk", 70, 32, None, 1, 5, {"stalled": 4, "late": 0})
    page = PAGE % (100, 10, 10, 10)
    assert figures([(0.0, READER.read(page + TIERS))]).tiers == (host, disk)
    assert figures([(0.0, READER.read(page))]).tiers == ()


def test_tiers_of_several_engines_are_added_and_the_slowest_disk_counts():
    one = Tier("disk", 70, 32, 2e9, 1, 5, {"stalled": 4, "late": 0})
    other = Tier("disk", 1, 16, 1e9, 0, 2, {"stalled": 1, "late": 3})
    host = Tier("host", 7, 48, None, 0, 0, {})
    assert together([host, one, other]) == (host, Tier("disk", 71, 48, 1e9, 1, 7, {"stalled": 5, "late": 3}))


def test_an_engine_that_does_not_report_its_kv_cache_has_no_figure_for_it():
    page = "\n".join(line for line in (PAGE % (100, 10, 10, 10)).splitlines() if "kv_cache" not in line)
    assert figures([(0.0, READER.read(f"{page}\n"))]).kv is None


def test_the_first_read_of_an_engine_has_no_rate_and_no_percentile():
    found = figures([(0.0, READER.read(PAGE % (100, 10, 10, 10)))])
    assert (found.tokens_per_s, found.ttft_p95) == (None, None)


def test_an_engine_process_that_started_anew_counts_from_its_start():
    found = figures([(0.0, READER.read(PAGE % (400, 10, 20, 20))), (2.0, READER.read(PAGE % (10, 1, 1, 1)))])
    assert found.tokens_per_s is None


def test_another_page_is_refused():
    with pytest.raises(ValueError, match="not an engine"):
        READER.read("up 1\n")


class Silent:
    """Stands in for a cluster that forwards no port."""

    class connection:
        @staticmethod
        def websocket(path, protocol):
            raise Problem("forbidden: cannot create pods/portforward")


def test_a_pod_that_cannot_be_reached_has_the_reason_beside_its_name():
    engines = EngineReader(Silent())
    try:
        found = engines.read([pod("chat-1"), pod("chat-2", ready=False)])
    finally:
        engines.close()
    assert list(found) == ["chat-1"]
    assert found["chat-1"].problem == "forbidden: cannot create pods/portforward"


def test_the_tiers_of_a_service_are_asked_for_where_it_has_any():
    with_tiers = Service.of(body(spec={"engine": {"kvCache": {"swap": "4Gi"}}}))
    found = service_tiers(Silent(), with_tiers, [pod("chat-1")])
    assert found == Tiers((), "pod chat-1 cannot be read: forbidden: cannot create pods/portforward")
    for cache in ({}, {"swap": 0}, {"swap": "0"}):
        assert service_tiers(Silent(), Service.of(body(spec={"engine": {"kvCache": cache}})), [pod("chat-1")]) is None


def test_a_pod_is_read_where_its_own_type_has_the_page_and_by_its_names():
    """The service may be of another type by now."""
    engine = EngineType(
        "custom", metrics_port=9000, metrics_path="/prometheus", metrics={"vllm:num_requests_running": "tgi_busy"}
    )
    custom, ours = pod("chat-1", engine=engine), pod("chat-2")
    assert (metrics_port(custom), metrics_port(ours)) == (9000, 8001)
    answers = {"/prometheus": "tgi_busy 3\n", "/metrics": "vllm:num_requests_running 5\n"}
    transport = httpx.MockTransport(lambda request: httpx.Response(200, text=answers[request.url.path]))
    with httpx.Client(transport=transport, base_url="http://pod") as http:
        running = [READER.read(known_page(http, one.engine)).count(reader.RUNNING) for one in (custom, ours)]
    assert running == [3, 5]
