"""Metrics pages of engines that do not exist: the engine's own page, with its numbers moved on by time and load.

The page of a real `EngineMetrics` with `PROFILE_REQUESTS` requests in it is taken apart once. Counters and histograms
of a fake engine are the profile's times the share of the profile that the engine has served; the gauges that the
operator reads are set one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry, generate_latest

from inflight_cost.model import CostModel
from inflight_engine.messages import EngineReady, StepCost, StepStats
from inflight_engine.runner_info import RunnerInfo
from inflight_engine.server.admission.demand import Demand, Load
from inflight_engine.server.requests.counts import Counts
from inflight_engine.server.telemetry.page import EngineMetrics, Gauges
from inflight_settings.limits import Limits
from inflight_settings.scheduling import ServiceClass

CAPACITY = Limits(max_num_seqs=8, max_num_batched_tokens=512)
"""Largest limits of every fake engine."""
RUNNING = 6
"""Requests that run in an engine without a queue."""
REQUESTS_PER_SECOND = 1.5
TOKENS_PER_REQUEST = 100
PROMPT_TOKENS = 200
PROFILE_REQUESTS = 1000

COST = CostModel(0.02, 0.001, 1e-5, 1e-9, 0.0)
"""Cost model with which an engine carries twice the requests that it gets, so that scaling changes nothing."""

_TTFT = ((0.08, 300), (0.15, 400), (0.25, 200), (0.45, 100))
_ITL = ((0.042, 40_000), (0.045, 40_000), (0.048, 20_000))
"""Times between tokens, just under the services' target of 50 ms, so that tuning changes nothing."""


@dataclass(slots=True)
class EngineState:
    """State behind a fake engine's page.

    Attributes:
        started: steady time from which its counters count.
        waiting: requests in its queue; its slots are full while there are any.
        max_num_seqs, max_num_batched_tokens, revision: limits in force.
    """

    started: float
    waiting: int = 0
    max_num_seqs: int = CAPACITY.max_num_seqs
    max_num_batched_tokens: int = CAPACITY.max_num_batched_tokens
    revision: int = 0

    def gauges(self) -> dict[str, float]:
        """The gauges that change, by the name of their sample."""
        return {
            "vllm:num_requests_running": self.max_num_seqs if self.waiting else min(RUNNING, self.max_num_seqs),
            "vllm:num_requests_waiting": self.waiting,
            "inflight_waiting_prompt_tokens": self.waiting * PROMPT_TOKENS,
            "inflight_max_num_seqs": self.max_num_seqs,
            "inflight_max_num_batched_tokens": self.max_num_batched_tokens,
            "inflight_runtime_config_revision": self.revision,
        }


LIVE_GAUGES = tuple(EngineState(0.0).gauges())


@dataclass(frozen=True, slots=True)
class _Line:
    """A sample of the profile's page.

    Attributes:
        name: name of the sample.
        family: its metric family, without `_total`.
        comments: HELP and TYPE, before the first sample of the family alone.
        series: name and labels.
        is_scaled: a counter, or part of a histogram.
    """

    name: str
    family: str
    comments: str
    series: str
    value: float
    is_scaled: bool

    def format(self) -> str:
        """A %-format of the line, with one value where it changes."""
        if self.is_scaled:
            # Observations are whole, sums are not.
            value = "%.3f" if self.name.endswith("_sum") else "%d"
        else:
            value = "%d" if self.name in LIVE_GAUGES else repr(self.value)
        return f"{(self.comments + self.series).replace('%', '%%')} {value}\n"


class Page:
    """All lines of the page, or those that a scrape asks for, ready to be filled in."""

    def __init__(self, lines: Iterable[_Line]) -> None:
        lines = tuple(lines)
        self._format = "".join(line.format() for line in lines)
        self._values: tuple[float | str, ...] = tuple(
            line.value if line.is_scaled else line.name for line in lines if line.is_scaled or line.name in LIVE_GAUGES
        )

    def render(self, state: EngineState, now: float) -> bytes:
        """The page of an engine in `state` at the steady time `now`."""
        share = (now - state.started) * REQUESTS_PER_SECOND / PROFILE_REQUESTS
        gauges = state.gauges()
        values = tuple([gauges[one] if isinstance(one, str) else one * share for one in self._values])
        return (self._format % values).encode()


class Pages:
    """The page by query string; a query is taken apart once.

    Attributes:
        profile: the real engine's page that they are made of, with this process's memory as it was then.
    """

    def __init__(self) -> None:
        self.profile = profile_page()
        self._lines = tuple(_parse(self.profile))
        self._by_query: dict[str, Page] = {}

    def page(self, query: str) -> Page:
        """Returns the page for a query: `name[]`, as in prometheus_client, selects samples by name or family."""
        found = self._by_query.get(query)
        if found is None:
            names = set(parse_qs(query).get("name[]", ()))
            lines = (line for line in self._lines if not names or line.name in names or line.family in names)
            found = self._by_query[query] = Page(lines)
        return found


def _parse(text: str) -> Iterator[_Line]:
    family, is_scaled, comments = "", False, ""
    for line in text.splitlines():
        if line.startswith("#"):
            comments += f"{line}\n"
            if line.startswith("# TYPE "):
                _, _, family, kind = line.split()
                is_scaled = kind in ("counter", "histogram")
                family = family.removesuffix("_total") if kind == "counter" else family
            continue
        series, _, value = line.rpartition(" ")
        yield _Line(series.partition("{")[0], family, comments, series, float(value), is_scaled)
        comments = ""


def profile_page() -> str:
    """The page of an engine that has served `PROFILE_REQUESTS` requests."""
    tokens = PROFILE_REQUESTS * TOKENS_PER_REQUEST
    stats = StepStats(
        num_running=RUNNING,
        num_waiting=0,
        waiting_prompt_tokens=0,
        kv_usage=0.5,
        num_preemptions=0,
        num_tier_blocks=0,
        prefix_queries=PROFILE_REQUESTS * PROMPT_TOKENS,
        prefix_hits=PROFILE_REQUESTS * PROMPT_TOKENS // 4,
        num_prefill_tokens=0,
        num_decode_tokens=RUNNING,
        step_seconds=0.045,
        schedule_seconds=5e-5,
    )
    ready = EngineReady(
        capacity=CAPACITY,
        runner=RunnerInfo(
            num_blocks=1000,
            block_size=16,
            max_model_len=4096,
            kv_bytes_per_token=1,
            vocab_size=50_000,
            device="cpu",
            dtype="bfloat16",
            attention_backend="fake",
            load_seconds=1.0,
        ),
    )
    gauges = Gauges(Load(stats, CAPACITY, ready, num_requests=RUNNING, queued_tokens=0), {"default": 0}, draining=False)
    counts, demand = Counts([ServiceClass("default")]), Demand()
    for _ in range(tokens // RUNNING):
        counts.step(stats, None)
        demand.step(stats)
    counts.prompt_tokens, counts.generation_tokens = PROFILE_REQUESTS * PROMPT_TOKENS, tokens
    demand.step_cost = StepCost(COST, error=0.03, steps=1000.0)
    demand.arrived_requests = PROFILE_REQUESTS
    demand.arrived_prompt_tokens = PROFILE_REQUESTS * PROMPT_TOKENS
    demand.arrived_prompt_tokens_squared = PROFILE_REQUESTS * PROMPT_TOKENS**2
    for _ in range(PROFILE_REQUESTS):
        demand.output_lengths.generated(0, TOKENS_PER_REQUEST)
        demand.output_lengths.ended(TOKENS_PER_REQUEST)
    for seconds, count in _TTFT:
        counts.time_to_first_token.observe(seconds, count)
        counts.queue_time.observe(seconds / 10, count)
        counts.end_to_end.observe(seconds + 0.045 * TOKENS_PER_REQUEST, count)
    for seconds, count in _ITL:
        counts.inter_token_latency.observe(seconds, count)
        counts.time_per_output_token.observe(seconds, count // TOKENS_PER_REQUEST)
    registry = CollectorRegistry()
    registry.register(EngineMetrics("fake", counts, demand, lambda: gauges))
    return generate_latest(registry).decode()
