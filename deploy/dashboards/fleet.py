"""All services: overall health, and services with problems."""

from __future__ import annotations

from deploy.dashboards import style
from deploy.dashboards.dashboard import Dashboard, Row
from deploy.dashboards.kinds import KINDS
from deploy.dashboards.panels import Column, Panel, Query, lines, number, percentiles, table
from deploy.dashboards.queries import SERVICE, SERVICES, added, in_target, known, quantile, rate

_NAME = "{{namespace}}/{{name}}"
_SHOWN = 20
"""Most series of a panel that has one for each service."""

_READY = known("service_ready_replicas", SERVICES)
_ORDERED = known("service_replicas", SERVICES)
_BLOCKED = known("service_blocked_replicas", SERVICES)
_WAITING = known("service_waiting_requests", SERVICES)
_KV_CACHE = known("service_kv_utilization", SERVICES)
_COST = known("service_cost_per_hour", SERVICES, (*SERVICE, "currency"))
_REQUESTS = "inflight_arrived_requests_total"
_TTFT = "vllm:time_to_first_token_seconds"
_TPOT = "vllm:request_time_per_output_token_seconds"


def _state(selector: str = SERVICES) -> str:
    return known("service_state", selector, (*SERVICE, "state", "engine"))


_DOWN = f"({known('service_state', SERVICES)} unless {_READY} > 0) unless {_ORDERED} == 0"
_FINE = _state(f'{SERVICES}, state=~"Serving|ScaledToZero"')


def _linked(expr: str) -> str:
    """Adds the label `dashboard`: uid of the service's dashboard, by its kind of engines."""
    uid = "inflight-service"
    others = "|".join(kind.name for kind in KINDS if kind.suffix)
    of_all = f'label_replace({expr}, "dashboard", "{uid}", "", "")'
    return f'label_replace({of_all}, "dashboard", "{uid}-$1", "engine", "({others})")'


def _now(counter: str) -> str:
    return rate(counter, SERVICES, SERVICE, "5m")


def _p95(histogram: str) -> str:
    return quantile(0.95, histogram, SERVICES, SERVICE, "5m")


def _attained(title: str, description: str, counter: str) -> Panel:
    return number(
        "percentunit",
        f"Share of {description} target, over all services with targets. Targets are 95th percentiles, so less than "
        "95% is red.",
        Query(title, in_target(counter, SERVICES, (), "5m")),
        steps=style.IN_TARGET,
        decimals=1,
        none="No requests or no target",
    )


def _least(description: str, counter: str) -> Panel:
    return lines(
        "percentunit",
        f"{description} was within the target of their service. The dashed line is the promise: 95%. The {_SHOWN} "
        "services with the least are shown.",
        Query(_NAME, f"bottomk({_SHOWN}, {in_target(counter, SERVICES)})"),
        top=1,
        line=0.95,
        calcs=("min", "mean", "lastNotNull"),
    )


def _most(
    unit: str,
    description: str,
    expr: str,
    legend: str = _NAME,
    *,
    top: float | None = None,
    decimals: int | None = None,
) -> Panel:
    text = f"{description} The {_SHOWN} services with the most are shown."
    query = Query(legend, f"topk({_SHOWN}, {expr})")
    return lines(unit, text, query, top=top, stacked=top is None, decimals=decimals)


def _results(description: str, counter: str) -> Panel:
    colors = {"done": style.GOOD, "failed": style.BAD}
    return lines("ops", description, Query("{{result}}", rate(counter, "", ("result",))), colors=colors)


DASHBOARD = Dashboard(
    "fleet",
    "All InferenceServices: which of them need attention, what they serve, and what they cost.",
    {
        Row("Is it fine", 4, 3): {
            "Down": number(
                "none",
                "Services with no pod that takes requests. Services that are scaled to zero do not count.",
                Query("Down", f"count(({_DOWN})) or vector(0)"),
                steps=style.FAULTS,
            ),
            "Degraded": number(
                "none",
                "Services that are not Ready, or Ready with a blocking problem. Services that are down are included; "
                "services that are scaled to zero are not.",
                Query("Degraded", f"count(({_state()}) unless ({_FINE})) or vector(0)"),
                steps=((None, style.GOOD), (1, style.WARNING)),
            ),
            "Blocked": number(
                "none",
                "Replicas that will not become ready without intervention: an image or a model that cannot be loaded, "
                "no node that fits, a quota.",
                Query("Blocked", f"{added(_BLOCKED)} or vector(0)"),
                steps=style.FAULTS,
            ),
            "TTFT in target": _attained(
                "TTFT in target", "first tokens of the last five minutes within their", "first_tokens"
            ),
            "TPOT in target": _attained(
                "TPOT in target",
                "finished requests of the last five minutes with a time per output token within their",
                "outputs",
            ),
            "Waiting": number(
                "short", "Requests without a slot, over all services.", Query("Waiting", added(_WAITING))
            ),
            "Cost/hour": number(
                "none",
                "Cost of all pods for an hour, by `spec.cost` of the services that set it.",
                Query("{{currency}}", added(_COST, ("currency",))),
                decimals=2,
                shows="value_and_name",
                none="No prices",
            ),
            "Operator": number(
                "none",
                "Whether an operator process leads. Without a leader, engines continue to serve, and scaling, tuning "
                "and rollouts are paused.",
                Query("Operator", "max(inflight_operator_leader) or vector(0)"),
                steps=((None, style.BAD), (1, style.GOOD)),
                names={"0": "No leader", "1": "Leading"},
            ),
        },
        Row("Which service", 9, 24): {
            "Services": table(
                "One row for each service, the least attainment of the TTFT target first. A click on a service opens "
                "its dashboard. Rates and percentiles are those of the last five minutes.",
                {
                    "name": "Service",
                    "namespace": "Namespace",
                    "engine": "Engine",
                    "state": "State",
                    "dashboard": "Dashboard",
                },
                Column(
                    "Ready",
                    "none",
                    _linked(f"({_state()} * on (namespace, name) group_left () {_READY}) or {_state()} * 0"),
                ),
                Column("Ordered", "none", _ORDERED),
                Column("Blocked", "none", _BLOCKED, steps=style.FAULTS),
                Column("Requests/s", "none", _now(_REQUESTS), 1),
                Column("Tokens/s", "short", _now("vllm:generation_tokens_total"), 0),
                Column("Waiting", "none", _WAITING),
                Column("KV cache", "percentunit", _KV_CACHE, 0, style.KV_USE),
                Column("TTFT p95", "s", _p95(_TTFT)),
                Column(
                    "TTFT in target",
                    "percentunit",
                    in_target("first_tokens", SERVICES, SERVICE, "5m"),
                    1,
                    style.IN_TARGET,
                ),
                Column("TPOT p95", "s", _p95(_TPOT)),
                Column(
                    "TPOT in target", "percentunit", in_target("outputs", SERVICES, SERVICE, "5m"), 1, style.IN_TARGET
                ),
                Column("Cost/h", "none", known("service_cost_per_hour", SERVICES), 2),
                sort=("TTFT in target", False),
                widths={"TTFT in target": 125, "TPOT in target": 115},
                links={
                    "Service": (
                        "Open the service",
                        "/d/${__data.fields.Dashboard}?${datasource:queryparam}&var-namespace=${__data.fields.Namespace}"
                        "&var-service=${__data.fields.Service}&${__url_time_range}",
                    )
                },
                by_text={"State": style.STATES},
                hidden=("Dashboard",),
            )
        },
        Row("Targets", 9, 12): {
            "First tokens in target, by service": _least("Share of requests whose time to first token", "first_tokens"),
            "Outputs in target, by service": _least(
                "Share of finished requests whose time per output token", "outputs"
            ),
        },
        Row("Traffic", 9, 12): {
            "Requests by service": _most(
                "reqps", "Requests that engines accepted, per second.", rate(_REQUESTS, SERVICES, SERVICE)
            ),
            "Tokens": lines(
                "short",
                "Prompt tokens of requests whose prefill ended, and generated tokens, per second over all services.",
                Query("Prompt tokens/s", rate("vllm:prompt_tokens_total", SERVICES), style.PROMPT),
                Query("Output tokens/s", rate("vllm:generation_tokens_total", SERVICES), style.OUTPUT),
            ),
            "Requests waiting by service": _most(
                "short",
                "Requests without a slot. A queue that grows for minutes needs replicas or less load.",
                _WAITING,
            ),
            "KV cache by service": _most(
                "percentunit",
                "Share of the KV cache in use, the mean of the service's pods. Near 100%, requests are preempted.",
                _KV_CACHE,
                top=1,
            ),
        },
        Row("Capacity", 9, 8): {
            "Services by state": lines(
                "none",
                "Services by the reason of their condition Ready.",
                Query("{{state}}", f"count by (state) ({_state()})"),
                stacked=True,
                colors=style.STATES,
                otherwise=style.BAD,
                decimals=0,
                calcs=("lastNotNull",),
            ),
            "Replicas": lines(
                "none",
                "Over all services: pods that take requests, replicas ordered, and replicas that will not become "
                "ready without intervention.",
                Query("Ready", added(_READY), style.READY),
                Query("Ordered", added(_ORDERED), style.ORDERED, dashed=True),
                Query("Blocked", added(_BLOCKED), style.BLOCKED),
                decimals=0,
            ),
            "Cost per hour by service": _most(
                "none", "Cost of the pods for an hour, by `spec.cost`.", _COST, f"{_NAME} {{{{currency}}}}", decimals=2
            ),
        },
        Row("Operator", 8, 8): {
            "Reconciliation": _results(
                "Rounds of the operator per second, by result. Failed rounds are retried; the operator's log has the "
                "refusals of the API server.",
                "inflight_operator_reconcile_total",
            ),
            "Duration of a round": lines(
                "s",
                "How long a round for one service takes.",
                *percentiles("inflight_operator_reconcile_duration_seconds", "", 0.5, 0.99),
            ),
            "Scrapes of engines": _results(
                "Scrapes of engine pods by the operator per second, by result. Without metrics of its pods, a service "
                "is not scaled down.",
                "inflight_operator_scrapes_total",
            ),
        },
    },
    several=True,
)
