"""The plugin's metrics, beside vLLM's own: names and meanings are those of Inflight's engine."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from inflight_contract import metrics as shared
from inflight_cost.model import TERMS
from inflight_vllm import VERSION
from inflight_vllm.board import Report
from inflight_vllm.drain import Drain
from inflight_vllm.guard import Guard
from inflight_vllm.limits import LiveLimits

_INFO = ("inflight_plugin_info", "The plugin in this vLLM server; always 1.")
_STEPS = ("inflight_plugin_steps", "Steps of vLLM's scheduler.")
_STEP_SECONDS = ("inflight_plugin_step_seconds", "Seconds of these steps.")
_OWN_SECONDS = ("inflight_plugin_own_seconds", "CPU seconds of these that the plugin itself took.")
_BESIDE_SECONDS = ("inflight_plugin_beside_seconds", "CPU seconds of the plugin's thread beside the steps.")


class PluginMetrics(Collector):
    """The families of one server.

    Attributes:
        model_name: label of every series.

    Args:
        vllm_version: of the plugin's information.
        guard: of the plugin's parts in this process: vLLM's own page has these families too.
    """

    def __init__(self, vllm_version: str, limits: LiveLimits, drain: Drain, guard: Guard) -> None:
        self.model_name = ""
        self._vllm_version = vllm_version
        self._limits = limits
        self._drain = drain
        self._guard = guard

    def describe(self) -> list[Metric]:
        """Nothing: a registry asks before the engine has reported."""
        return []

    def collect(self) -> Iterable[Metric]:
        """All families; after an error the plugin's information only."""
        families: list[Metric] = []
        self._guard.run(lambda: families.extend([*self._families()]))
        return families or [self._info(self._guard.problem)]

    def _info(self, problem: str | None) -> Metric:
        state = "active" if problem is None else "unsupported"
        info = {"version": VERSION, "vllm_version": self._vllm_version, "state": state, "reason": problem or ""}
        return self._gauge(_INFO, [(info, 1)])

    def _families(self) -> Iterable[Metric]:
        report, drain = self._limits.report, self._drain
        yield self._info(report.problem)
        yield self._gauge(shared.DRAINING, [({}, float(drain.draining))])
        yield self._counter(shared.ADMISSION_REJECTIONS, {"reason": "draining"}, drain.refused)
        if report.problem is None:
            yield from self._live(report)

    def _live(self, report: Report) -> Iterable[Metric]:
        force = self._limits.in_force
        for metric, value in (
            (shared.MAX_NUM_SEQS, force.limits.max_num_seqs),
            (shared.MAX_NUM_SEQS_CAPACITY, report.max_num_seqs),
            (shared.MAX_NUM_BATCHED_TOKENS, force.limits.max_num_batched_tokens),
            (shared.MAX_NUM_BATCHED_TOKENS_CAPACITY, report.max_num_batched_tokens),
            (shared.RUNTIME_CONFIG_REVISION, force.revision),
            (shared.KV_CACHE_TOKENS, report.num_blocks * report.block_size),
            (shared.WAITING_PROMPT_TOKENS, report.waiting_prompt_tokens),
            (shared.OUTPUT_TOKENS_MEAN, report.output_mean),
            (shared.OUTPUT_TOKENS_SECOND_MOMENT, report.output_square),
        ):
            if value is not None:
                yield self._gauge(metric, [({}, value)])
        for metric, count in (
            (shared.ARRIVED_REQUESTS, report.arrived[0]),
            (shared.ARRIVED_PROMPT_TOKENS, report.arrived[1]),
            (shared.ARRIVED_PROMPT_TOKENS_SQUARED, report.arrived[2]),
            (_STEPS, report.steps),
            (_STEP_SECONDS, report.step_seconds),
            (_OWN_SECONDS, report.own_seconds),
            (_BESIDE_SECONDS, report.beside_seconds),
        ):
            yield self._counter(metric, {}, count)
        cost = report.cost
        if cost is not None:
            terms = [({"term": term}, getattr(cost, name)) for term, name in TERMS.items()]
            yield self._gauge(shared.STEP_COST_SECONDS, terms)
            if cost.curve:
                curve = [({"tokens": f"{tokens:g}"}, seconds) for tokens, seconds in cost.curve]
                yield self._gauge(shared.STEP_COST_CURVE_SECONDS, curve)
            yield self._gauge(shared.STEP_COST_ERROR_RATIO, [({}, report.cost_error)])
            yield self._gauge(shared.STEP_COST_STEPS, [({}, report.cost_steps)])

    def _gauge(self, metric: tuple[str, str], rows: list[tuple[dict[str, str], float]]) -> Metric:
        family = GaugeMetricFamily(*metric, labels=("model_name", *rows[0][0]))
        for labels, value in rows:
            family.add_metric((self.model_name, *labels.values()), value)
        return family

    def _counter(self, metric: tuple[str, str], labels: dict[str, str], value: float) -> Metric:
        family = CounterMetricFamily(*metric, labels=("model_name", *labels))
        family.add_metric((self.model_name, *labels.values()), value)
        return family
