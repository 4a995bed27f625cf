"""Traces with a stand-in for the engine process, so that its reports are exact; the real one is in
test_real_tracing.py."""

import asyncio
import itertools
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.context import Context
from opentelemetry.propagate import extract
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import get_current_span

from inflight_engine.request import FinishReason
from inflight_engine.server.requests.generation import MAX_PREEMPTIONS
from inflight_engine.server.settings.tracing import TracingConfig
from inflight_engine.server.telemetry.spans import MAX_PHASES, HeaderGetter
from inflight_engine.server.telemetry.trace_export import TraceExport
from inflight_settings.engine import EngineConfig
from inflight_settings.scheduling import ServiceClass
from tests.engine.server.fake_engine import until

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NOWHERE = TracingConfig("http://127.0.0.1:9/v1/traces")


@pytest.fixture
def make_traced(make_fake, monkeypatch):
    """Makes services whose spans are kept in memory, and what keeps them."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    exports = []

    async def make(exporter=None, config=NOWHERE, **changes):
        fake, kept = await make_fake(**changes), InMemorySpanExporter()
        exports.append(TraceExport(config, exporter or kept))
        fake.service.spans = exports[-1].spans("fake")
        fake.service.metrics.spans = exports[-1].counts
        fake.traces, fake.kept = exports[-1], kept
        return fake

    yield make
    for export in exports:
        export.close(5)


async def answered(fake, path="/v1/completions", headers=None, text="ab", **body):
    """A request that the fake engine answers, with its response."""
    known = set(fake.engine.requests)
    asked = asyncio.create_task(fake.http.post(path, json={"prompt": "hello", **body}, headers=headers))
    await until(lambda: set(fake.engine.requests) - known)
    fake.engine.answer(max(fake.engine.requests), text)
    return await asked


async def spans_of(fake, count):
    await until(lambda: len(fake.kept.get_finished_spans()) >= count)
    spans = fake.kept.get_finished_spans()
    assert len(spans) == count
    servers = [span for span in spans if span.kind.name == "SERVER"]
    return servers, sorted((span for span in spans if span not in servers), key=lambda span: span.start_time)


async def test_a_request_has_a_server_span_with_queue_prefill_and_decode_within_it(make_traced):
    fake = await make_traced(engine=EngineConfig("fake", classes=(ServiceClass("chat", priority=3),)))
    before = time.time_ns()
    response = await answered(fake, headers={"x-request-id": "abc"}, temperature=0.5)
    assert response.status_code == 200
    (server,), phases = await spans_of(fake, 4)
    assert server.name == "POST /v1/completions"
    assert [phase.name for phase in phases] == ["queue", "prefill", "decode"]
    assert all(phase.parent.span_id == server.context.span_id for phase in phases)
    edges = [server.start_time, *(edge for phase in phases for edge in (phase.start_time, phase.end_time))]
    assert edges == sorted(edges)
    assert before <= server.start_time
    assert phases[-1].end_time <= server.end_time <= time.time_ns()
    assert all(before.end_time == after.start_time for before, after in itertools.pairwise(phases))
    expected = {
        "http.request.method": "POST",
        "http.route": "/v1/completions",
        "url.path": "/v1/completions",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "inflight",
        "gen_ai.request.model": "fake",
        "gen_ai.response.model": "fake",
        "gen_ai.request.id": "abc",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.usage.prompt_tokens": 5,
        "gen_ai.usage.completion_tokens": 2,
        "gen_ai.response.finish_reasons": ("stop",),
        "inflight.class": "chat",
        "inflight.priority": 3,
        "inflight.cached_tokens": 0,
        "inflight.preemptions": 0,
        "inflight.aborted": False,
    }
    assert {key: server.attributes.get(key) for key in expected} == expected
    latencies = [
        server.attributes[f"gen_ai.latency.{name}"] for name in ("time_in_queue", "time_to_first_token", "e2e")
    ]
    assert latencies == sorted(latencies)
    assert "hello" not in str(dict(server.attributes))


async def test_the_trace_of_the_caller_goes_on(make_traced):
    fake = await make_traced()
    await answered(fake, headers={"traceparent": PARENT, "tracestate": "vendor=1"})
    (server,), phases = await spans_of(fake, 4)
    assert f"{server.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{server.parent.span_id:016x}" == PARENT.split("-")[2]
    assert server.context.trace_state.get("vendor") == "1"
    assert {phase.context.trace_id for phase in phases} == {server.context.trace_id}


@pytest.mark.parametrize(
    ("ratio", "header", "count"),
    [(0.0, None, 0), (0.0, PARENT, 4), (1.0, PARENT[:-1] + "0", 0), (1.0, "garbage", 4), (None, None, 4)],
)
async def test_the_caller_decides_and_the_ratio_decides_for_traces_that_begin_here(make_traced, ratio, header, count):
    fake = await make_traced(config=TracingConfig(NOWHERE.endpoint, ratio))
    await answered(fake, headers={"traceparent": header} if header else None)
    await asyncio.sleep(0.1)
    await spans_of(fake, count)


async def test_a_preempted_request_has_its_phases_again(make_traced):
    fake = await make_traced()
    asked = asyncio.create_task(fake.post("/v1/completions", prompt="hello"))
    await until(lambda: fake.engine.requests)
    report = fake.engine.report
    report(admitted=[(0, 1)], num_running=1)
    report(tokens={1: 97}, num_running=1, num_decode_tokens=1)
    report(preempted=[0], num_waiting=1)
    await until(lambda: fake.service.session.stats.num_waiting == 1)
    await asyncio.sleep(0.02)
    report(admitted=[(0, 2)], num_running=1)
    report(tokens={2: 98}, num_running=1, num_decode_tokens=1)
    report(finished=[(0, FinishReason.STOP)])
    assert (await asked).json()["choices"][0]["text"] == "ab"
    (server,), phases = await spans_of(fake, 7)
    assert [phase.name for phase in phases] == ["queue", "prefill", "decode", "preempted", "prefill", "decode"]
    assert server.attributes["inflight.preemptions"] == 1
    assert phases[3].end_time - phases[3].start_time >= 15_000_000
    assert [phase.attributes.get("inflight.resumed", False) for phase in phases] == [False] * 4 + [True, False]


async def test_phases_of_one_that_is_preempted_all_the_time_are_bounded(make_traced):
    fake = await make_traced()
    asked = asyncio.create_task(fake.post("/v1/completions", prompt="hello"))
    await until(lambda: fake.engine.requests)
    report = fake.engine.report
    for _ in range(MAX_PREEMPTIONS + 6):
        report(admitted=[(0, 1)], num_running=1)
        report(tokens={1: 97}, num_running=1, num_decode_tokens=1)
        report(preempted=[0], num_waiting=1)
    report(finished=[(0, FinishReason.STOP)])
    await asked
    (server,), phases = await spans_of(fake, 1 + MAX_PHASES)
    assert [phase.name for phase in phases][:4] == ["queue", "prefill", "decode", "preempted"]
    assert server.attributes["inflight.preemptions"] == MAX_PREEMPTIONS + 6
    assert server.attributes["inflight.phases_dropped"] >= 2 * MAX_PREEMPTIONS - MAX_PHASES


async def test_each_answer_of_a_request_has_its_phases(make_traced):
    fake = await make_traced()
    asked = asyncio.create_task(fake.post("/v1/completions", prompt="hello", n=2))
    await until(lambda: len(fake.engine.requests) == 2)
    fake.engine.answer(0, "a", slot=0)
    fake.engine.answer(1, "b", slot=1, reason=FinishReason.LENGTH)
    await asked
    (server,), phases = await spans_of(fake, 7)
    assert sorted(phase.attributes["inflight.choice"] for phase in phases) == [0, 0, 0, 1, 1, 1]
    assert server.attributes["gen_ai.request.choice.count"] == 2
    assert server.attributes["gen_ai.response.finish_reasons"] == ("stop", "length")


async def test_refused_and_failed_requests_have_a_server_span_with_the_error(make_traced):
    fake = await make_traced()
    assert (await fake.post("/v1/completions", prompt="x" * 200)).status_code == 400
    asked = asyncio.create_task(fake.post("/v1/completions", prompt="hello"))
    await until(lambda: fake.engine.requests)
    fake.engine.report(finished=[(min(fake.engine.requests), FinishReason.ERROR)])
    assert (await asked).status_code == 500
    (refused, failed), phases = await spans_of(fake, 3)
    assert (refused.attributes["http.response.status_code"], refused.status.status_code.name) == (400, "UNSET")
    assert (failed.attributes["error.type"], failed.status.status_code.name) == ("engine_error", "ERROR")
    assert [phase.name for phase in phases] == ["queue"]


async def test_probes_and_scrapes_have_no_trace(make_traced):
    fake = await make_traced()
    for path in ("/health", "/ready", "/metrics"):
        await fake.http.get(path)
    await fake.http.get("/v1/models")
    servers, _ = await spans_of(fake, 1)
    assert servers[0].name == "GET /v1/models"


class Stuck:
    """An exporter that takes nothing until it is released; then it refuses."""

    def __init__(self):
        self.release = threading.Event()

    def export(self, spans):
        self.release.wait(120)
        return SpanExportResult.FAILURE

    def shutdown(self):
        self.release.set()


async def test_a_collector_that_hangs_costs_spans_that_are_counted_and_no_request(make_traced, monkeypatch):
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
    exporter = Stuck()
    fake = await make_traced(exporter)
    for _ in range(8):
        assert (await answered(fake)).status_code == 200
    counts = fake.traces.counts
    assert counts.ended == 32
    assert counts.queue_full >= 32 - 8 - 4
    text = (await fake.http.get("/metrics")).text
    assert (
        f'inflight_trace_spans_dropped_total{{model_name="fake",reason="queue_full"}} {float(counts.queue_full)}'
        in text
    )
    assert 'inflight_trace_spans_exported_total{model_name="fake"} 0.0' in text
    exporter.release.set()
    await until(lambda: counts.waiting == 0)
    assert counts.refused == 32 - counts.queue_full


async def test_without_tracing_the_page_has_no_metrics_of_it(make_fake):
    fake = await make_fake()
    assert "inflight_trace" not in (await fake.http.get("/metrics")).text


async def test_the_end_of_the_process_waits_for_spans_no_longer_than_told(make_traced):
    fake = await make_traced(Stuck())
    await answered(fake)
    began = time.monotonic()
    await asyncio.to_thread(fake.traces.close, 0.2)
    assert time.monotonic() - began < 60


def test_the_resource_is_named_by_the_environment(monkeypatch):
    export = TraceExport(NOWHERE, InMemorySpanExporter())
    assert export.provider.resource.attributes["service.name"] == "inflight-engine"
    export.close(1)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "chat")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.namespace.name=team-a")
    export = TraceExport(NOWHERE, InMemorySpanExporter())
    named = {key: export.provider.resource.attributes[key] for key in ("service.name", "k8s.namespace.name")}
    assert named == {"service.name": "chat", "k8s.namespace.name": "team-a"}
    export.close(1)


headers = st.lists(
    st.tuples(
        st.sampled_from([b"traceparent", b"tracestate", b"baggage", b"x"]),
        st.one_of(st.binary(max_size=600), st.just(PARENT.encode()), st.from_regex(rb"[0-9a-f]{2}-[0-9a-f]{32}-.*")),
    ),
    max_size=6,
)


@given(headers)
def test_no_header_is_too_strange_for_the_trace_context(raw):
    context = get_current_span(extract(raw, Context(), HeaderGetter())).get_span_context()
    parents = [value for name, value in raw if name == b"traceparent"]
    if len(parents) != 1:
        assert not context.is_valid
    elif parents == [PARENT.encode()]:
        assert f"{context.trace_id:032x}" == PARENT.split("-")[1]
