"""One service: attainment of targets, bottlenecks, and the operator's actions."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from deploy.dashboards import decisions, gateway, style
from deploy.dashboards.frame import Row, assemble, service_variables, uid
from deploy.dashboards.panels import Panel, Query, lines, number, percentiles
from deploy.dashboards.queries import ONE_SERVICE, in_target, known, quantile, rate, ratio
from deploy.dashboards.scaling import limits_panel, replicas_panel, value
from deploy.dashboards.tables import Column, rows

TTFT = "vllm:time_to_first_token_seconds"
TPOT = "vllm:request_time_per_output_token_seconds"
GATEWAY_ROW = "Gateway (services with spec.gateway.enabled)"


def dashboard() -> Dashboard:
    made = assemble(
        "service",
        "Inflight / Service",
        "One InferenceService: latency against its targets, load, KV cache, replicas and limits, with the operator's "
        "decisions as marks.",
        service_variables(several=False),
        [
            Row("Is it fine", 4, [(3, one) for one in _overview()]),
            Row("Latency", 11, [(8, one) for one in _latency()]),
            Row("Load", 9, [(12, one) for one in _load()]),
            Row("Replicas and limits", 10, [(8, one) for one in _scale()]),
            Row("Memory and rejections", 12, [(8, one) for one in _memory()]),
            Row(GATEWAY_ROW, 9, [(8, one) for one in gateway.panels()]),
            Row("Pods", 7, [(24, _pods())]),
        ],
    )
    return made.annotation(decisions.SCALING).annotation(decisions.TUNING)


def _overview() -> list[Panel]:
    def of_target(title: str, percentile: str, histogram: str, target: str) -> Panel:
        return number(
            title,
            f"95th percentile of {percentile} in the last five minutes, as a share of its target. Above 100%, the "
            "target is missed.",
            "percentunit",
            [Query(f"{quantile(0.95, histogram, ONE_SERVICE, (), '5m')} / {value(target)}", "p95 / target")],
            steps=style.OF_TARGET,
            decimals=0,
            none="No requests or no target",
        )

    return [
        number(
            "State",
            "Reason of the condition Ready. `kubectl describe ifsvc` has the sentence that goes with it.",
            "none",
            [Query(f"{known('service_state', ONE_SERVICE, ('state',))} == 1", "{{state}}")],
            named=True,
        ),
        number(
            "Ready",
            "Pods that take requests, as a share of the replicas ordered.",
            "percentunit",
            [Query(ratio(value("ready_replicas"), value("replicas")), "Ready / ordered")],
            steps=((None, style.BAD), (0.5, style.WARNING), (1, style.GOOD)),
            decimals=0,
            none="None ordered",
        ),
        of_target("TTFT / target", "time to first token", TTFT, "ttft_target_seconds"),
        of_target("TPOT / target", "time per output token", TPOT, "tpot_target_seconds"),
        number(
            "Waiting",
            "Requests without a slot, over all pods.",
            "short",
            [Query(value("waiting_requests"), "Waiting")],
        ),
        number(
            "Queue ahead",
            "Seconds until all prompt tokens that wait now are computed, by the measured cost of steps: the pod with "
            "the longest queue.",
            "s",
            [Query(f"max(inflight_predicted_queue_seconds{{{ONE_SERVICE}}})", "Longest")],
        ),
        number(
            "KV cache",
            "Share of the KV cache in use, the mean of the pods.",
            "percentunit",
            [Query(value("kv_utilization"), "In use")],
            steps=style.KV_USE,
            decimals=0,
        ),
        number(
            "Cost/hour",
            "Cost of the pods for an hour, by `spec.cost`.",
            "none",
            [Query(known("service_cost_per_hour", ONE_SERVICE, ("currency",)), "{{currency}}")],
            decimals=2,
            labelled=True,
            none="No price",
        ),
    ]


def _percentiles(title: str, description: str, histogram: str, target: str) -> Panel:
    return lines(
        title,
        f"{description} The dashed line is the target of the 95th percentile.",
        "s",
        [
            *percentiles(histogram, ONE_SERVICE),
            Query(value(target), "Target of p95", style.TARGET, dashed=True),
        ],
    )


def _latency() -> list[Panel]:
    return [
        _percentiles(
            "Time to first token",
            "From the arrival of a request to its first token. The target is that of a prompt of the mean length.",
            TTFT,
            "ttft_target_seconds",
        ),
        _percentiles(
            "Time per output token",
            "Mean time per token after the first, of finished requests.",
            TPOT,
            "tpot_target_seconds",
        ),
        lines(
            "Requests in target",
            "Share of first tokens and of finished requests within the targets of `spec.slo`. The dashed line is the "
            "promise: 95%.",
            "percentunit",
            [
                Query(in_target("first_tokens", ONE_SERVICE, ()), "First tokens (TTFT)", style.PROMPT),
                Query(in_target("outputs", ONE_SERVICE, ()), "Outputs (TPOT)", style.OUTPUT),
            ],
            top=1,
            line=(0.95, style.TARGET),
            calcs=("min", "mean", "lastNotNull"),
        ),
    ]


def _load() -> list[Panel]:
    queue = "vllm:request_queue_time_seconds"
    return [
        lines(
            "Requests",
            "Requests that engines accepted, and requests that were answered to the end, per second.",
            "reqps",
            [
                Query(rate("inflight_arrived_requests_total", ONE_SERVICE), "Arriving", style.WAITING),
                Query(rate("vllm:request_success_total", ONE_SERVICE), "Finished", style.READY),
            ],
        ),
        lines(
            "Tokens",
            "Prompt tokens of requests whose prefill ended, and generated tokens, per second.",
            "short",
            [
                Query(rate("vllm:prompt_tokens_total", ONE_SERVICE), "Prompt tokens/s", style.PROMPT),
                Query(rate("vllm:generation_tokens_total", ONE_SERVICE), "Output tokens/s", style.OUTPUT),
            ],
        ),
        lines(
            "Requests running and waiting",
            "Requests with a slot, and requests that wait for one, over all pods.",
            "short",
            [
                Query(value("running_requests"), "Running", style.RUNNING),
                Query(value("waiting_requests"), "Waiting", style.WAITING),
            ],
            stacked=True,
        ),
        lines(
            "Queue time",
            "Predicted: seconds until all prompt tokens that wait now are computed, by the measured cost of steps, in "
            "the pod with the longest queue. Measured: from arrival to a slot, of requests that got one.",
            "s",
            [
                Query(f"max(inflight_predicted_queue_seconds{{{ONE_SERVICE}}})", "Predicted, longest", style.MODELLED),
                *percentiles(queue, ONE_SERVICE, 0.5, 0.95, named="Measured "),
            ],
        ),
    ]


def _scale() -> list[Panel]:
    return [
        replicas_panel(),
        limits_panel(
            "max_num_seqs",
            "Requests that run at once: max_num_seqs",
            "Requests that one engine runs at once.",
        ),
        limits_panel(
            "max_num_batched_tokens",
            "Tokens of a step: max_num_batched_tokens",
            "Tokens that one engine computes in a step.",
        ),
    ]


def _memory() -> list[Panel]:
    return [
        lines(
            "KV cache by pod",
            "Share of the KV cache in use. Near 100%, requests are preempted.",
            "percentunit",
            [Query(f"max by (pod) (vllm:kv_cache_usage_perc{{{ONE_SERVICE}}})", "{{pod}}")],
            top=1,
        ),
        lines(
            "Preemptions by pod",
            "Requests per second that lost their slot because the KV cache was full. They are computed again or "
            "swapped, which costs throughput.",
            "ops",
            [Query(rate("vllm:num_preemptions_total", ONE_SERVICE, ("pod",)), "{{pod}}")],
            least_top=style.FEW_PER_SECOND,
        ),
        lines(
            "Rejected requests",
            "Requests per second that engines refused, by reason. Clients got 503, or 400 where the request can never "
            "fit.",
            "reqps",
            [Query(rate("inflight_admission_rejections_total", ONE_SERVICE, ("reason",)), "{{reason}}")],
            stacked=True,
            least_top=style.FEW_PER_SECOND,
        ),
    ]


def _pods() -> Panel:
    recent, labels = "5m", ("pod",)
    address = (
        f"/d/{uid('engine')}?${{datasource:queryparam}}&${{namespace:queryparam}}&${{service:queryparam}}"
        "&var-pod=${__data.fields.Pod}&${__url_time_range}"
    )

    def now(metric: str) -> str:
        return f"max by (pod) ({metric}{{{ONE_SERVICE}}})"

    return rows(
        "Pods",
        "One row for each engine pod. A click on a pod opens its engine. Rates and percentiles are those of the last "
        "five minutes.",
        {"pod": "Pod"},
        [
            Column("Running", now("vllm:num_requests_running"), "none"),
            Column("Waiting", now("vllm:num_requests_waiting"), "none"),
            Column("Predicted queue", now("inflight_predicted_queue_seconds"), "s"),
            Column("KV cache", now("vllm:kv_cache_usage_perc"), "percentunit", 0, style.KV_USE),
            Column("Requests/s", rate("inflight_arrived_requests_total", ONE_SERVICE, labels, recent), "none", 1),
            Column("Tokens/s", rate("vllm:generation_tokens_total", ONE_SERVICE, labels, recent), "short", 0),
            Column("TTFT p95", quantile(0.95, TTFT, ONE_SERVICE, labels, recent), "s"),
            Column("TPOT p95", quantile(0.95, TPOT, ONE_SERVICE, labels, recent), "s"),
            Column("Restarts", now("inflight_engine_restarts_total"), "none", steps=style.FAULTS),
        ],
        sort=("TTFT p95", True),
        links={"Pod": ("Open the engine", address)},
    )
