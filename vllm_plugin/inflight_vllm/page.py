"""The plugin's metrics, beside vLLM's own: names and meanings are those of Inflight's engine."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from inflight_cost.model import TERMS, CostModel
from inflight_vllm import VERSION
from inflight_vllm.drain import Drain
from inflight_vllm.limits import LiveLimits


class PluginMetrics(Collector):
    """The families of one server.

    Args:
        model_name: label of every series.
        vllm_version: of the plugin's information.
    """

    def __init__(self, model_name: str, vllm_version: str, limits: LiveLimits, drain: Drain) -> None:
        self._model_name = model_name
        self._vllm_version = vllm_version
        self._limits = limits
        self._drain = drain

    def describe(self) -> list[Metric]:
        """Nothing: a registry asks before the engine has reported."""
        return []

    def collect(self) -> Iterable[Metric]:
        """All families."""
        limits, drain = self._limits, self._drain
        problem = limits.problem
        state = "active" if problem is None else "unsupported"
        info = {"version": VERSION, "vllm_version": self._vllm_version, "state": state, "reason": problem or ""}
        yield self._gauge("inflight_plugin_info", "The plugin in this vLLM server; always 1.", [(info, 1)])
        yield self._gauge("inflight_draining", "1 while the engine drains.", [({}, float(drain.draining))])
        yield self._counter(
            "inflight_admission_rejections", "Rejected requests by reason.", {"reason": "draining"}, drain.refused
        )
        if problem is None:
            yield from self._live()

    def _live(self) -> Iterable[Metric]:
        report, force, capacity = self._limits.report, self._limits.in_force, self._limits.capacity
        for name, documentation, value in (
            ("max_num_seqs", "Limit in force of the requests that run at once.", force.limits.max_num_seqs),
            ("max_num_seqs_capacity", "Upper bound of max_num_seqs.", capacity.max_num_seqs),
            ("max_num_batched_tokens", "Limit in force of the tokens in a step.", force.limits.max_num_batched_tokens),
            (
                "max_num_batched_tokens_capacity",
                "Upper bound of max_num_batched_tokens.",
                capacity.max_num_batched_tokens,
            ),
            ("runtime_config_revision", "Revision of the limits in force.", force.revision),
            ("kv_cache_tokens", "Capacity of the KV cache in tokens.", report.num_blocks * report.block_size),
            ("waiting_prompt_tokens", "Prompt tokens not yet computed.", report.waiting_prompt_tokens),
            ("output_tokens_mean", "Mean tokens of an output.", report.output_mean),
            ("output_tokens_second_moment", "Mean of squared output lengths.", report.output_square),
        ):
            if value is not None:
                yield self._gauge(f"inflight_{name}", documentation, [({}, value)])
        for name, documentation, count in (
            ("arrived_requests", "Accepted requests.", report.arrived[0]),
            ("arrived_prompt_tokens", "Prompt tokens of accepted requests.", report.arrived[1]),
            ("arrived_prompt_tokens_squared", "Sum of squared prompt lengths.", report.arrived[2]),
            ("plugin_steps", "Steps of vLLM's scheduler.", report.steps),
            ("plugin_step_seconds", "Seconds of these steps.", report.step_seconds),
            ("plugin_own_seconds", "CPU seconds of these that the plugin itself took.", report.own_seconds),
        ):
            yield self._counter(f"inflight_{name}", documentation, {}, count)
        if report.cost is not None:
            yield from self._cost(report.cost)
            error, steps = report.cost_error, report.cost_steps
            yield self._gauge("inflight_step_cost_error_ratio", "Median relative error of the cost.", [({}, error)])
            yield self._gauge("inflight_step_cost_steps", "Steps behind the fit.", [({}, steps)])

    def _cost(self, cost: CostModel) -> Iterable[Metric]:
        yield self._gauge(
            "inflight_step_cost_seconds",
            "Seconds that each term adds to a step, fitted to recent steps.",
            [({"term": term}, getattr(cost, name)) for term, name in TERMS.items()],
        )
        if cost.curve:
            yield self._gauge(
                "inflight_step_cost_curve_seconds",
                "Seconds that a number of tokens adds to a step, where the cost is not linear.",
                [({"tokens": f"{tokens:g}"}, seconds) for tokens, seconds in cost.curve],
            )

    def _gauge(self, name: str, documentation: str, rows: list[tuple[dict[str, str], float]]) -> Metric:
        family = GaugeMetricFamily(name, documentation, labels=("model_name", *rows[0][0]))
        for labels, value in rows:
            family.add_metric((self._model_name, *labels.values()), value)
        return family

    def _counter(self, name: str, documentation: str, labels: dict[str, str], value: float) -> Metric:
        family = CounterMetricFamily(name, documentation, labels=("model_name", *labels))
        family.add_metric((self._model_name, *labels.values()), value)
        return family
