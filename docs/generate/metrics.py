"""The reference of the metrics: every family that engine, operator and gateway export, from their own collectors."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Metric

from docs.generate.markdown import GENERATED, cell, code, table
from inflight_base.manifest.keys import ServiceKey
from inflight_cost.model import CostModel
from inflight_engine.messages import EngineReady, Loading, StepCost, WeightsRead
from inflight_engine.runner_info import RunnerInfo
from inflight_engine.server.admission.demand import Demand, Load
from inflight_engine.server.admission.peer_reads import PeerReads
from inflight_engine.server.engine.session import NO_STATS
from inflight_engine.server.requests.counts import Counts
from inflight_engine.server.telemetry.page import EngineMetrics, Gauges
from inflight_gateway.state.load import ServiceLoad
from inflight_gateway.telemetry.metrics import IndexCollector
from inflight_gateway.telemetry.metrics import Metrics as GatewayMetrics
from inflight_gateway.tenants.usage import Usage
from inflight_operator.telemetry.metrics import OperatorMetrics
from inflight_settings.limits import Limits
from inflight_settings.scheduling import ServiceClass

INTRODUCTION = """\
# Metrics

Histograms have the suffixes `_bucket`, `_count` and `_sum`. See [The engine](../engine.md#cost-of-steps-and-demand) for
the cost of steps, and [Alerts](../alerts.md) for recording rules.

"""
ENGINE = """\
## Engine metrics

`GET /metrics` of each pod. Names, types and meanings of `vllm:*` are those of vLLM. Every series has the label
`model_name`. `?name[]=NAME`, repeated, returns only these families or samples.

"""
OPERATOR = """\
## Operator metrics

`GET /metrics` of the leading operator pod, port 8080. Series of a service have the labels `namespace` and `name`, and
end when the service is deleted.

"""
GATEWAY = """\
## Gateway metrics

`GET /metrics` of each gateway pod, port 9003. Each pod counts the requests of the services that it owns; a request that
ends elsewhere counts where it ended. Series of a service have the labels `namespace` and `service`.

"""
_HEADER = ("metric", "type", "labels", "meaning")
_SERVICE = ("namespace", "name")


def page() -> str:
    """The whole page."""
    engine, operator, gateway = map(_table, (engine_families(), operator_families(), gateway_families()))
    return GENERATED + INTRODUCTION + ENGINE + engine + "\n" + OPERATOR + operator + "\n" + GATEWAY + gateway


def engine_families() -> list[Metric]:
    """All families of an engine that has measured its steps and serves a class with targets."""
    runner = RunnerInfo(1, 1, 1, 1, 1, "cpu", "float32", "native", 0.0, digest="sha256:0", cache_problem="full")
    ready = EngineReady(Limits(1, 1), runner, WeightsRead(0, 0, 0))
    target = ServiceClass(ttft_target=1.0, tpot_target=1.0)
    now = Gauges(
        Load(NO_STATS, ready.capacity, ready, 0, 0), {target.name: 0}, draining=False, loading=Loading(0, 1, 0.0)
    )
    demand = Demand()
    metrics = EngineMetrics("", Counts([target]), demand, lambda: now)
    demand.step_cost = StepCost(CostModel(0.0, 0.0, 0.0, 0.0, 0.0, curve=((1.0, 0.0),)), 0.0, 0.0)
    demand.output_lengths.generated(0, 1)
    demand.output_lengths.ended(1)
    metrics.dropped_events = lambda: 0
    metrics.peer_reads = PeerReads(None, (), lambda: NO_STATS)
    return metrics.collect()


def operator_families() -> list[Metric]:
    """All families of an operator: its own, then those of services."""
    metrics = OperatorMetrics()
    metrics.count_scrapes(lambda: (0, 0))
    metrics.count_gateway_pods(lambda: (0, 0))
    metrics.reconciles.labels("done")
    metrics.decisions.labels("Scaling", "")
    return sorted(metrics.registry.collect(), key=_is_of_services)


def gateway_families() -> list[Metric]:
    """All families of a picker that serves one service."""
    service, metrics, usage = ServiceKey("", ""), GatewayMetrics(), Usage()
    metrics.watch_loads(lambda: {service: ServiceLoad()})
    usage.of(service, "").refused["key"] = 0
    metrics.registry.register(usage)
    metrics.registry.register(IndexCollector(lambda: {(service, "exact"): 0}))
    return list(metrics.registry.collect())


def _is_of_services(family: Metric) -> bool:
    return _labels(family)[: len(_SERVICE)] == list(_SERVICE)


def _table(families: Iterable[Metric]) -> str:
    return table(_HEADER, [_row(family) for family in families if not family.name.endswith("_created")])


def _row(family: Metric) -> list[str]:
    name = family.name + ("_total" if family.type == "counter" else "")
    labels = [label for label in _labels(family) if label not in ("model_name", "le")]
    return [code(name), family.type, ", ".join(map(code, labels)), cell(family.documentation)]


def _labels(family: Metric) -> list[str]:
    """Labels in their order: of the family, or of its samples where it does not know them."""
    own: Iterable[str] = getattr(family, "_labelnames", ())
    return list(own) or list(dict.fromkeys(label for sample in family.samples for label in sample.labels))
