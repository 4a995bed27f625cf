"""Dashboard of one service: attainment of targets, bottlenecks, and the operator's actions."""

from __future__ import annotations

from deploy.dashboards import style
from deploy.dashboards.dashboard import ENGINES, Dashboard, Row
from deploy.dashboards.panels import Column, Panel, Query, lines, number, percentiles, table
from deploy.dashboards.queries import ONE_SERVICE, added, in_target, known, quantile, rate, ratio, value
from deploy.dashboards.queries import ONE_SERVICE_BEHIND_GATEWAY as BEHIND

_TTFT = "vllm:time_to_first_token_seconds"
_TPOT = "vllm:request_time_per_output_token_seconds"
_GATEWAY = "inflight_gateway"
_FROM_PEERS = f'{ONE_SERVICE}, tier="peer"'


def replicas(*more: Query) -> Panel:
    """Replicas of the service; decisions mark it. `more`: further lines."""
    return lines(
        "none",
        "Replicas ordered, pods that take requests, the operator's recommendation, and replicas that will not become "
        "ready without intervention. Marks are decisions with their reasons.",
        Query("Ready", value("ready_replicas"), style.READY),
        Query("Ordered", value("replicas"), style.ORDERED),
        Query("Recommended", known("desired_replicas", ONE_SERVICE, ()), style.WANTED, dashed=True),
        Query("Blocked", value("blocked_replicas"), style.BLOCKED),
        *more,
        decimals=None if more else 0,
        calcs=("min", "max", "lastNotNull"),
    )


def limit(name: str, description: str) -> Panel:
    """A limit of engines: in force, best by the cost model, and the engines' capacity."""
    capacity = f"min(inflight_{name}_capacity{{{ONE_SERVICE}}})"
    accepted = "Capacity: the most that the engines accept."
    return lines(
        "short",
        f"{description} In force: the limit set by the operator. Best by cost model: the limit at which the targets "
        "are kept with the most requests per second; the operator approaches it step by step, and a limit that served "
        "worse is taken back.",
        Query("In force", value(name), style.IN_FORCE),
        Query("Best by cost model", value(f"model_{name}"), style.MODELLED, dashed=True),
        Query("Capacity of the engines", capacity, style.TARGET, dashed=True, about=accepted),
        calcs=("min", "max", "lastNotNull"),
    )


MAX_NUM_SEQS = limit("max_num_seqs", "Requests that one engine runs at once.")
MAX_NUM_BATCHED_TOKENS = limit("max_num_batched_tokens", "Tokens that one engine computes in a step.")


def _of_target(percentile: str, histogram: str, target: str) -> Panel:
    return number(
        "percentunit",
        f"95th percentile of {percentile} in the last five minutes, as a share of its target. Above 100%, the target "
        "is missed.",
        Query("p95 / target", f"{quantile(0.95, histogram, ONE_SERVICE, (), '5m')} / {value(target)}"),
        steps=style.OF_TARGET,
        decimals=0,
        none="No requests or no target",
    )


def _against_target(description: str, histogram: str, target: str, selector: str = ONE_SERVICE) -> Panel:
    return lines(
        "s",
        f"{description} The dashed line is the target of the 95th percentile.",
        *percentiles(histogram, selector),
        Query("Target of p95", value(target), style.TARGET, dashed=True),
    )


def _share(part: str, whole: str) -> str:
    return ratio(rate(f"{_GATEWAY}_{part}_total", BEHIND), rate(f"{_GATEWAY}_{whole}_total", BEHIND))


def _by_pod(metric: str) -> str:
    return f"max by (pod) ({metric}{{{ONE_SERVICE}}})"


_WAITING_IN_ENGINES = f"({value('waiting_requests')} - {value('held_requests')}) or {value('waiting_requests')}"
_PREDICTED_QUEUE = f"max(inflight_predicted_queue_seconds{{{ONE_SERVICE}}})"

DASHBOARD = Dashboard(
    "service",
    "One InferenceService: latency against its targets, load, KV cache, replicas and limits, with the operator's "
    "decisions as marks.",
    {
        Row("Is it fine", 4, 3): {
            "State": number(
                "none",
                "Reason of the condition Ready. `kubectl describe ifsvc` has the sentence that goes with it.",
                Query("{{state}}", f"{known('service_state', ONE_SERVICE, ('state',))} == 1"),
                shows="name",
            ),
            "Ready": number(
                "percentunit",
                "Pods that take requests, as a share of the replicas ordered.",
                Query("Ready / ordered", ratio(value("ready_replicas"), value("replicas"))),
                steps=((None, style.BAD), (0.5, style.WARNING), (1, style.GOOD)),
                decimals=0,
                none="None ordered",
            ),
            "TTFT / target": _of_target("time to first token", _TTFT, "ttft_target_seconds"),
            "TPOT / target": _of_target("time per output token", _TPOT, "tpot_target_seconds"),
            "Waiting": number(
                "short",
                "Requests without a slot: at the gateway, and in engines over all pods.",
                Query("Waiting", value("waiting_requests")),
            ),
            "Queue ahead": number(
                "s",
                "Seconds until all prompt tokens that wait now are computed, by the measured cost of steps: the pod "
                "with the longest queue.",
                Query("Longest", _PREDICTED_QUEUE),
            ),
            "KV cache": number(
                "percentunit",
                "Share of the KV cache in use, the mean of the pods.",
                Query("In use", value("kv_utilization")),
                steps=style.KV_USE,
                decimals=0,
            ),
            "Cost/hour": number(
                "none",
                "Cost of the pods for an hour, by `spec.cost`.",
                Query("{{currency}}", known("service_cost_per_hour", ONE_SERVICE, ("currency",))),
                decimals=2,
                shows="value_and_name",
                none="No price",
            ),
        },
        Row("Latency", 11, 8): {
            "Time to first token": _against_target(
                "From the arrival of a request to its first token. The target is that of a prompt of the mean length.",
                _TTFT,
                "ttft_target_seconds",
            ),
            "Time per output token": _against_target(
                "Mean time per token after the first, of finished requests.", _TPOT, "tpot_target_seconds"
            ),
            "Requests in target": lines(
                "percentunit",
                "Share of first tokens and of finished requests within the targets of `spec.slo`. The dashed line is "
                "the promise: 95%.",
                Query("First tokens (TTFT)", in_target("first_tokens", ONE_SERVICE, ()), style.PROMPT),
                Query("Outputs (TPOT)", in_target("outputs", ONE_SERVICE, ()), style.OUTPUT),
                top=1,
                line=0.95,
                calcs=("min", "mean", "lastNotNull"),
            ),
        },
        Row("Load", 9, 12): {
            "Requests": lines(
                "reqps",
                "Requests per second.",
                Query(
                    "Arriving",
                    rate("inflight_arrived_requests_total", ONE_SERVICE),
                    style.WAITING,
                    about="Arriving: accepted by engines.",
                ),
                Query(
                    "Finished",
                    rate("vllm:request_success_total", ONE_SERVICE),
                    style.READY,
                    about="Finished: answered to the end.",
                ),
            ),
            "Tokens": lines(
                "short",
                "Prompt tokens of requests whose prefill ended, and generated tokens, per second.",
                Query("Prompt tokens/s", rate("vllm:prompt_tokens_total", ONE_SERVICE), style.PROMPT),
                Query("Output tokens/s", rate("vllm:generation_tokens_total", ONE_SERVICE), style.OUTPUT),
            ),
            "Requests running and waiting": lines(
                "short",
                "Requests with a slot, and the queue of the service: requests that wait in engines, over all pods, and "
                "at the gateway.",
                Query("Running", value("running_requests"), style.RUNNING),
                Query("Waiting in engines", _WAITING_IN_ENGINES, style.WAITING),
                Query("Waiting at the gateway", value("held_requests"), style.HELD),
                stacked=True,
            ),
            "Queue time": lines(
                "s",
                "Measured: from arrival to a slot, of requests that got one.",
                Query(
                    "Predicted, longest",
                    _PREDICTED_QUEUE,
                    style.MODELLED,
                    about="Predicted: seconds until all prompt tokens that wait now are computed, by the measured cost "
                    "of steps, in the pod with the longest queue.",
                ),
                *percentiles("vllm:request_queue_time_seconds", ONE_SERVICE, 0.5, 0.95, named="Measured "),
            ),
        },
        Row("Replicas and limits", 10, 8): {
            "Replicas": replicas(),
            "Requests that run at once: max_num_seqs": MAX_NUM_SEQS,
            "Tokens of a step: max_num_batched_tokens": MAX_NUM_BATCHED_TOKENS,
        },
        Row("Memory and rejections", 12, 8): {
            "KV cache by pod": lines(
                "percentunit",
                "Share of the KV cache in use. Near 100%, requests are preempted.",
                Query("{{pod}}", _by_pod("vllm:kv_cache_usage_perc")),
                top=1,
            ),
            "Preemptions by pod": lines(
                "ops",
                "Requests per second that lost their slot because the KV cache was full. They are computed again or "
                "loaded from host memory, which costs throughput.",
                Query("{{pod}}", rate("vllm:num_preemptions_total", ONE_SERVICE, ("pod",))),
                least_top=style.FEW_PER_SECOND,
            ),
            "Rejected requests": lines(
                "reqps",
                "Requests per second that engines refused, by reason. Clients got 503, or 400 where the request can "
                "never fit.",
                Query("{{reason}}", rate("inflight_admission_rejections_total", ONE_SERVICE, ("reason",))),
                stacked=True,
                least_top=style.FEW_PER_SECOND,
            ),
        },
        Row("Gateway (services with spec.gateway.enabled)", 9, 8): {
            "Requests at the gateway by status": lines(
                "reqps",
                "Requests per second that ended, by the HTTP status that the client got. 0: the client left before "
                "one.",
                Query("{{status}}", rate(f"{_GATEWAY}_requests_total", BEHIND, ("status",))),
                stacked=True,
                colors={"200": style.GOOD, "429": style.WARNING, "502": style.BAD, "503": style.BAD, "504": style.BAD},
            ),
            "Time to first token at the gateway": _against_target(
                "As clients see it: from the arrival of a request at the gateway to its first token, with the time "
                "that it waited there and all attempts.",
                f"{_GATEWAY}_time_to_first_token_seconds",
                "ttft_target_seconds",
                BEHIND,
            ),
            "Requests held and in flight": lines(
                "short",
                "Held: requests that wait at the gateway for an engine that can start them. In flight: requests that "
                "the gateway sent to engines.",
                Query("In flight", added(f"{_GATEWAY}_requests_in_flight{{{BEHIND}}}"), style.RUNNING),
                Query("Held", added(f"{_GATEWAY}_held_requests{{{BEHIND}}}"), style.HELD),
                stacked=True,
            ),
            "Time held": lines(
                "s",
                "How long requests waited at the gateway before they were sent to an engine, and how long the oldest "
                "request has waited now.",
                *percentiles(f"{_GATEWAY}_held_seconds", BEHIND, 0.5, 0.95),
                Query("Oldest now", f"max({_GATEWAY}_oldest_held_seconds{{{BEHIND}}})", style.WAITING),
            ),
            "Attempts and continuations": lines(
                "short",
                "Attempts: engines that a request was sent to, the mean; 1 without a failure. Continuations: answers "
                "per request that went on at another engine after the client had some of them.",
                Query("Attempts/request", _share("attempts", "requests"), style.MEASURED),
                Query("Continuations/request", _share("continuations", "requests"), style.WARNING),
                decimals=2,
            ),
            "Longest gap in a stream": lines(
                "s",
                "The longest time between two pieces of the same stream: a stream that goes on at another engine has "
                "a gap.",
                *percentiles(f"{_GATEWAY}_longest_gap_seconds", BEHIND, 0.5, 0.99),
            ),
            "Picks by reason": lines(
                "ops",
                "Engines chosen per second, by what decided the choice.",
                Query("{{reason}}", rate(f"{_GATEWAY}_picks_total", BEHIND, ("reason",))),
                stacked=True,
            ),
            "Prefix cache hits": lines(
                "percentunit",
                "Share of prompt tokens that the chosen engine's prefix cache held: as the gateway predicted, and as "
                "engines counted. Predictions are estimated from characters.",
                Query("Predicted", _share("cached_tokens_predicted", "prompt_tokens"), style.MODELLED),
                Query("Found", _share("cached_tokens_found", "prompt_tokens"), style.MEASURED),
            ),
            "Tokens by tenant": lines(
                "short",
                "Prompt and output tokens per second of each tenant. `anonymous`: requests without an API key.",
                Query(
                    "{{tenant}}",
                    rate(f"{_GATEWAY}_tenant_tokens_total", f'{BEHIND}, kind=~"prompt|completion"', ("tenant",)),
                ),
                stacked=True,
            ),
        },
        Row("Prompts on other engines (services with spec.disaggregation)", 8, 12): {
            "Hand-overs": lines(
                "ops",
                "Requests per second, by what became of their hand-over. Another engine goes on with each by keys and "
                "values that it reads, or computes it again.",
                Query(
                    "Handed over",
                    rate(f"{_GATEWAY}_picks_total", f'{BEHIND}, reason="prefill"'),
                    style.READY,
                    dashed=True,
                    about="The dashed line is the gateway's: prompts that a prefill engine computes for another one.",
                ),
                Query(
                    "Computed again: late",
                    rate("inflight_peer_late_requests_total", ONE_SERVICE),
                    style.WARNING,
                    about="Late: not all keys and values came in time.",
                ),
                Query(
                    "Reads that failed",
                    rate("inflight_peer_failed_reads_total", ONE_SERVICE),
                    style.BAD,
                    about="The engines of the service also read from each other when one of them drains.",
                ),
                least_top=style.FEW_PER_SECOND,
            ),
            "Keys and values read from other engines": lines(
                "Bps",
                "Bytes per second that the engines of the service read, prefill engines not included. The dashed line "
                "is the speed of one read as the slowest pod measured it.",
                Query("Read", rate("inflight_tier_loaded_bytes_total", _FROM_PEERS), style.MEASURED),
                Query(
                    "Measured speed",
                    f"min(inflight_tier_bytes_per_second{{{_FROM_PEERS}}} > 0)",
                    style.MODELLED,
                    dashed=True,
                ),
            ),
        },
        Row("Pods", 7, 24): {
            "Pods": table(
                "One row for each engine pod. A click on a pod opens its engine. Rates and percentiles are those of "
                "the last five minutes.",
                {"pod": "Pod"},
                Column("Running", "none", _by_pod("vllm:num_requests_running")),
                Column("Waiting", "none", _by_pod("vllm:num_requests_waiting")),
                Column("Predicted queue", "s", _by_pod("inflight_predicted_queue_seconds")),
                Column("KV cache", "percentunit", _by_pod("vllm:kv_cache_usage_perc"), 0, style.KV_USE),
                Column("Requests/s", "none", rate("inflight_arrived_requests_total", ONE_SERVICE, ("pod",), "5m"), 1),
                Column("Tokens/s", "short", rate("vllm:generation_tokens_total", ONE_SERVICE, ("pod",), "5m"), 0),
                Column("TTFT p95", "s", quantile(0.95, _TTFT, ONE_SERVICE, ("pod",), "5m")),
                Column("TPOT p95", "s", quantile(0.95, _TPOT, ONE_SERVICE, ("pod",), "5m")),
                Column("Restarts", "none", _by_pod("inflight_engine_restarts_total"), steps=style.FAULTS),
                sort=("TTFT p95", True),
                links={
                    "Pod": (
                        "Open the engine",
                        ENGINES + "?${datasource:queryparam}&${namespace:queryparam}&${service:queryparam}"
                        "&var-pod=${__data.fields.Pod}&${__url_time_range}",
                    )
                },
            )
        },
    },
    decisions=True,
)
