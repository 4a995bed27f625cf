"""All services: overall health, and services with problems."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from deploy.dashboards import style
from deploy.dashboards.frame import Row, assemble, service_variables, uid
from deploy.dashboards.panels import Panel, Query, lines, number, percentiles
from deploy.dashboards.queries import SERVICE, SERVICES, added, in_target, known, quantile, rate
from deploy.dashboards.tables import Column, rows

_NAME = "{{namespace}}/{{name}}"
_SHOWN = 20
"""Most series of a panel that has one for each service."""

_STATE = known("service_state", SERVICES, ("namespace", "name", "state"))
_READY = known("service_ready_replicas", SERVICES)
_ORDERED = known("service_replicas", SERVICES)


def dashboard() -> Dashboard:
    return assemble(
        "fleet",
        "Inflight / Fleet",
        "All InferenceServices: which of them need attention, what they serve, and what they cost.",
        service_variables(several=True),
        [
            Row("Is it fine", 4, [(3, one) for one in _overview()]),
            Row("Which service", 9, [(24, _services())]),
            Row("Targets", 9, [(12, one) for one in _targets()]),
            Row("Traffic", 9, [(12, one) for one in _traffic()]),
            Row("Capacity", 9, [(8, one) for one in _capacity()]),
            Row("Operator", 8, [(8, one) for one in _operator()]),
        ],
    )


def _overview() -> list[Panel]:
    down = f"(({known('service_state', SERVICES)} unless {_READY} > 0) unless {_ORDERED} == 0)"
    return [
        number(
            "Down",
            "Services with no pod that takes requests. Services that are scaled to zero do not count.",
            "none",
            [Query(f"count({down}) or vector(0)", "Down")],
            steps=style.FAULTS,
        ),
        number(
            "Degraded",
            "Services that are not Ready, or Ready with a blocking problem. Services that are down are included; "
            "services that are scaled to zero are not.",
            "none",
            [Query(f"count(({_STATE}) unless ({_state('Serving|ScaledToZero')})) or vector(0)", "Degraded")],
            steps=((None, style.GOOD), (1, style.WARNING)),
        ),
        number(
            "Blocked",
            "Replicas that will not become ready without intervention: an image or a model that cannot be loaded, no "
            "node that fits, a quota.",
            "none",
            [Query(f"{added(known('service_blocked_replicas', SERVICES))} or vector(0)", "Blocked")],
            steps=style.FAULTS,
        ),
        number(
            "TTFT in target",
            "Share of first tokens of the last five minutes within their target, over all services with targets. "
            "Targets are 95th percentiles, so less than 95% is red.",
            "percentunit",
            [Query(in_target("first_tokens", SERVICES, (), "5m"), "TTFT in target")],
            steps=style.IN_TARGET,
            decimals=1,
            none="No requests or no target",
        ),
        number(
            "TPOT in target",
            "Share of finished requests of the last five minutes with a time per output token within their target, "
            "over all services with targets. Targets are 95th percentiles, so less than 95% is red.",
            "percentunit",
            [Query(in_target("outputs", SERVICES, (), "5m"), "TPOT in target")],
            steps=style.IN_TARGET,
            decimals=1,
            none="No requests or no target",
        ),
        number(
            "Waiting",
            "Requests without a slot, over all services.",
            "short",
            [Query(added(known("service_waiting_requests", SERVICES)), "Waiting")],
        ),
        number(
            "Cost/hour",
            "Cost of all pods for an hour, by `spec.cost` of the services that set it.",
            "none",
            [Query(added(known("service_cost_per_hour", SERVICES, _COST), ("currency",)), "{{currency}}")],
            decimals=2,
            labelled=True,
            none="No prices",
        ),
        number(
            "Operator",
            "Whether an operator process leads. Without a leader, engines continue to serve, and scaling, tuning and "
            "rollouts are paused.",
            "none",
            [Query("max(inflight_operator_leader) or vector(0)", "Operator")],
            steps=((None, style.BAD), (1, style.GOOD)),
            names={"0": "No leader", "1": "Leading"},
        ),
    ]


_COST = ("namespace", "name", "currency")


def _state(names: str) -> str:
    return known("service_state", f'{SERVICES}, state=~"{names}"', ("namespace", "name", "state"))


def _services() -> Panel:
    ready = f"({_STATE} * on (namespace, name) group_left () {_READY}) or {_STATE} * 0"
    engine, labels = f"{SERVICES}", SERVICE
    recent = "5m"
    address = (
        f"/d/{uid('service')}?${{datasource:queryparam}}&var-namespace=${{__data.fields.Namespace}}"
        "&var-service=${__data.fields.Service}&${__url_time_range}"
    )
    return rows(
        "Services",
        "One row for each service, the least attainment of the TTFT target first. A click on a service opens its "
        "dashboard. Rates and percentiles are those of the last five minutes.",
        {"name": "Service", "namespace": "Namespace", "state": "State"},
        [
            Column("Ready", ready, "none"),
            Column("Ordered", _ORDERED, "none"),
            Column("Blocked", known("service_blocked_replicas", SERVICES), "none", steps=style.FAULTS),
            Column("Requests/s", rate("inflight_arrived_requests_total", engine, labels, recent), "none", 1),
            Column("Tokens/s", rate("vllm:generation_tokens_total", engine, labels, recent), "short", 0),
            Column("Waiting", known("service_waiting_requests", SERVICES), "none"),
            Column("KV cache", known("service_kv_utilization", SERVICES), "percentunit", 0, style.KV_USE),
            Column("TTFT p95", quantile(0.95, "vllm:time_to_first_token_seconds", engine, labels, recent), "s"),
            Column(
                "TTFT in target",
                in_target("first_tokens", SERVICES, SERVICE, recent),
                *("percentunit", 1, style.IN_TARGET),
            ),
            Column(
                "TPOT p95", quantile(0.95, "vllm:request_time_per_output_token_seconds", engine, labels, recent), "s"
            ),
            Column(
                "TPOT in target", in_target("outputs", SERVICES, SERVICE, recent), "percentunit", 1, style.IN_TARGET
            ),
            Column("Cost/h", known("service_cost_per_hour", SERVICES), "none", 2),
        ],
        sort=("TTFT in target", False),
        widths={"TTFT in target": 125, "TPOT in target": 115},
        links={"Service": ("Open the service", address)},
        colors={"State": style.STATES},
    )


def _targets() -> list[Panel]:
    def panel(title: str, description: str, counter: str) -> Panel:
        share = in_target(counter, SERVICES)
        return lines(
            title,
            f"{description} The dashed line is the promise: 95%. The {_SHOWN} services with the least are shown.",
            "percentunit",
            [Query(f"bottomk({_SHOWN}, {share})", _NAME)],
            top=1,
            line=(0.95, style.TARGET),
            calcs=("min", "mean", "lastNotNull"),
        )

    return [
        panel(
            "First tokens in target, by service",
            "Share of requests whose time to first token was within the target of their service.",
            "first_tokens",
        ),
        panel(
            "Outputs in target, by service",
            "Share of finished requests whose time per output token was within the target of their service.",
            "outputs",
        ),
    ]


def _traffic() -> list[Panel]:
    def panel(title: str, description: str, unit: str, expr: str, *, top: float | None = None) -> Panel:
        text = f"{description} The {_SHOWN} services with the most are shown."
        return lines(title, text, unit, [Query(f"topk({_SHOWN}, {expr})", _NAME)], top=top, stacked=top is None)

    return [
        panel(
            "Requests by service",
            "Requests that engines accepted, per second.",
            "reqps",
            rate("inflight_arrived_requests_total", SERVICES, SERVICE),
        ),
        lines(
            "Tokens",
            "Prompt tokens of requests whose prefill ended, and generated tokens, per second over all services.",
            "short",
            [
                Query(rate("vllm:prompt_tokens_total", SERVICES), "Prompt tokens/s", style.PROMPT),
                Query(rate("vllm:generation_tokens_total", SERVICES), "Output tokens/s", style.OUTPUT),
            ],
        ),
        panel(
            "Requests waiting by service",
            "Requests without a slot. A queue that grows for minutes needs replicas or less load.",
            "short",
            known("service_waiting_requests", SERVICES),
        ),
        panel(
            "KV cache by service",
            "Share of the KV cache in use, the mean of the service's pods. Near 100%, requests are preempted.",
            "percentunit",
            known("service_kv_utilization", SERVICES),
            top=1,
        ),
    ]


def _capacity() -> list[Panel]:
    return [
        lines(
            "Services by state",
            "Services by the reason of their condition Ready.",
            "none",
            [Query(f"count by (state) ({_STATE})", "{{state}}")],
            stacked=True,
            colors=style.STATES,
            otherwise=style.BAD,
            decimals=0,
            calcs=("lastNotNull",),
        ),
        lines(
            "Replicas",
            "Over all services: pods that take requests, replicas ordered, and replicas that will not become ready "
            "without intervention.",
            "none",
            [
                Query(added(_READY), "Ready", style.READY),
                Query(added(_ORDERED), "Ordered", style.ORDERED, dashed=True),
                Query(added(known("service_blocked_replicas", SERVICES)), "Blocked", style.BLOCKED),
            ],
            decimals=0,
        ),
        lines(
            "Cost per hour by service",
            f"Cost of the pods for an hour, by `spec.cost`. The {_SHOWN} services with the most are shown.",
            "none",
            [Query(f"topk({_SHOWN}, {known('service_cost_per_hour', SERVICES, _COST)})", f"{_NAME} {{{{currency}}}}")],
            stacked=True,
            decimals=2,
        ),
    ]


def _operator() -> list[Panel]:
    rounds = "inflight_operator_reconcile_duration_seconds"
    return [
        lines(
            "Reconciliation",
            "Rounds of the operator per second, by result. Failed rounds are retried; the operator's log has the "
            "refusals of the API server.",
            "ops",
            [Query(rate("inflight_operator_reconcile_total", "", ("result",)), "{{result}}")],
            colors={"done": style.GOOD, "failed": style.BAD},
        ),
        lines(
            "Duration of a round",
            "How long a round for one service takes.",
            "s",
            percentiles(rounds, "", 0.5, 0.99),
        ),
        lines(
            "Scrapes of engines",
            "Scrapes of engine pods by the operator per second, by result. Without metrics of its pods, a service is "
            "not scaled down.",
            "ops",
            [Query(rate("inflight_operator_scrapes_total", "", ("result",)), "{{result}}")],
            colors={"done": style.GOOD, "failed": style.BAD},
        ),
    ]
