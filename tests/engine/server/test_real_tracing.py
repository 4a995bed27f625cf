"""Traces and JSON logs of the real command with a real model. The collector's network end is a stand-in."""

import asyncio
import itertools
import json
import signal
import time
from pathlib import Path

import httpx
import pytest

from tests.engine.server.collector import Collector, attributes
from tests.engine.server.real_server import RealServer

pytestmark = pytest.mark.slow

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def collector():
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture(scope="module")
def traced(tmp_path_factory, collector):
    """A server with room for two short requests, of which one has to give way when both grow."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        running = RealServer(
            tmp_path_factory.mktemp("traced"),
            *"--dtype float32 --max-num-seqs 4 --max-num-batched-tokens 128 --max-model-len 256".split(),
            *"--block-size 16 --num-kv-blocks 18 --no-prefix-caching --log-format json --enable-access-log".split(),
            *f"--otlp-traces-endpoint {collector.url} --traces-sampling-ratio 1".split(),
        )
    try:
        yield running.wait_ready()
    finally:
        running.close()


def ask(server, request_id, tokens=8, **headers):
    return httpx.post(
        server.url + "/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "Name a color."}], "max_tokens": tokens, "ignore_eos": True},
        headers={"x-request-id": request_id, **headers},
        timeout=60,
    )


def lines(server):
    return [json.loads(line) for line in server.log.read_text().splitlines()]


def test_spans_of_a_request_arrive_below_the_callers_and_add_up(traced, collector):
    before = time.time_ns()
    assert ask(traced, "traced-1", traceparent=PARENT).status_code == 200
    server = collector.server_of("traced-1")
    after = time.time_ns()  # the span ends when the answer has been sent, which the client may see first
    assert set(collector.paths) == {"/v1/traces"}
    assert collector.resources[0]["service.name"] == "inflight-engine"
    assert (server.trace_id.hex(), server.parent_span_id.hex()) == tuple(PARENT.split("-")[1:3])
    phases = collector.children(server)
    assert [phase.name for phase in phases] == ["queue", "prefill", "decode"]
    assert all(a.end_time_unix_nano == b.start_time_unix_nano for a, b in itertools.pairwise(phases))
    assert before <= server.start_time_unix_nano <= phases[0].start_time_unix_nano
    assert phases[-1].end_time_unix_nano <= server.end_time_unix_nano <= after
    found = attributes(server)
    assert found["gen_ai.operation.name"] == "chat"
    assert found["gen_ai.usage.output_tokens"] == 8
    assert found["gen_ai.response.finish_reasons"] == ["length"]
    assert found["gen_ai.latency.time_to_first_token"] < found["gen_ai.latency.e2e"]
    assert "color" not in str(found)


async def test_a_preemption_by_the_real_scheduler_is_in_the_trace(traced, collector):
    answers = await asyncio.gather(*(asyncio.to_thread(ask, traced, f"growing-{i}", 180) for i in range(2)))
    assert [answer.status_code for answer in answers] == [200, 200]
    servers = [await asyncio.to_thread(collector.server_of, f"growing-{i}") for i in range(2)]
    assert traced.metrics()["vllm:num_preemptions_total"] >= 1
    counts = [attributes(server)["inflight.preemptions"] for server in servers]
    assert sum(counts) == traced.metrics()["vllm:num_preemptions_total"]
    victim = collector.children(servers[counts.index(max(counts))])
    names = [phase.name for phase in victim]
    assert names[:6] == ["queue", "prefill", "decode", "preempted", "prefill", "decode"]
    assert all(a.end_time_unix_nano == b.start_time_unix_nano for a, b in itertools.pairwise(victim))


def test_all_lines_of_both_processes_are_json_and_the_access_log_has_the_trace(traced, collector):
    response = ask(traced, "logged-1", traceparent=PARENT)
    span = collector.server_of("logged-1")
    written = lines(traced)
    assert {line["process"] for line in written} == {"api", "engine"}
    assert all({"time", "level", "logger", "message"} <= set(line) for line in written)
    (access,) = (line for line in written if line.get("request_id") == "logged-1")
    usage = response.json()["usage"]
    assert (access["prompt_tokens"], access["output_tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert (access["trace_id"], access["span_id"]) == (span.trace_id.hex(), span.span_id.hex())
    assert "color" not in traced.log.read_text()
    assert not any(line.get("path") in ("/ready", "/metrics") for line in written)


def test_without_a_collector_requests_go_on_and_the_end_is_not_held_up(traced, collector):
    collector.close()
    for i in range(3):
        assert ask(traced, f"alone-{i}").status_code == 200
    began = time.monotonic()
    traced.process.send_signal(signal.SIGTERM)
    assert traced.process.wait(60) == 0
    assert time.monotonic() - began < 30
    exporting = [line for line in lines(traced) if line["logger"].startswith("opentelemetry.exporter")]
    assert len(exporting) <= 1


def test_only_a_server_with_tracing_loads_the_exporter(own_server):
    library = "google/_upb"  # protobuf's extension, which it loads
    assert library not in Path(f"/proc/{own_server().process.pid}/maps").read_text()
    tracing = own_server("--otlp-traces-endpoint", "http://127.0.0.1:9", wait=False)
    deadline = time.monotonic() + 60
    while library not in Path(f"/proc/{tracing.process.pid}/maps").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
