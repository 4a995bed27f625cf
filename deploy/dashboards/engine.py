"""The engines of a service: step time by part, batch make-up, rejections."""

from __future__ import annotations

from deploy.dashboards import style
from deploy.dashboards.dashboard import Dashboard, Row
from deploy.dashboards.panels import Query, lines, number, percentiles
from deploy.dashboards.queries import PODS, RANGE, RATE, mean, quantile, rate, ratio

STEP = "inflight_step_duration_seconds"
TERMS = {
    "step": ("Fixed cost", "yellow"),
    "decode_sequence": ("Decode: tokens", "blue"),
    "decode_kv_token": ("Decode: KV reads", "light-blue"),
    "prefill_token": ("Prefill: tokens", "purple"),
    "prefill_context_token": ("Prefill: attention", "light-purple"),
    "copied_token": ("Copying", "orange"),
    "curve": ("Curve over tokens", "green"),
}
"""Label `term` of the cost of steps: its name in legends, and its colour."""

_FINISHED = {
    "stop": style.GOOD,
    "length": "blue",
    "abort": style.WARNING,
    "timeout": "purple",
    "error": style.BAD,
    "out_of_memory": "dark-red",
}
"""Colours of reasons for which requests end."""

_TOKENS = "vllm:iteration_tokens_total"
_LIMIT = "The dashed line is the limit in force."


def per_term(counter: str, selector: str, term: str, window: str = RATE) -> str:
    """Growth of a term's counter per step."""
    grown = rate(counter, f'{selector}, term="{term}"', (), window)
    return ratio(grown, rate(f"{STEP}_count", selector, (), window))


def parts(selector: str, window: str = RATE) -> list[Query]:
    """Predicted seconds of a mean step, by part."""
    predicted = "inflight_step_predicted_seconds_total"
    return [Query(name, per_term(predicted, selector, term, window), color) for term, (name, color) in TERMS.items()]


DASHBOARD = Dashboard(
    "engine",
    "The engine pods of one InferenceService: steps and batches, caches, refused requests, and memory.",
    {
        Row("Is it fine", 4, 4): {
            "Engines": number(
                "none",
                "Engine pods that Prometheus scrapes.",
                Query("Engines", f"count(count by (pod) (vllm:num_requests_running{{{PODS}}}))"),
            ),
            "Engine restarts": number(
                "none",
                "Engine processes that were replaced in the time range because they died or hung. Streams that had "
                "begun were lost.",
                Query("Restarts", f"round(sum(increase(inflight_engine_restarts_total{{{PODS}}}[{RANGE}])))"),
                steps=style.FAULTS,
            ),
            "Out-of-memory steps": number(
                "none",
                "Steps in the time range for which the device had no memory: computed in pieces, or failed.",
                Query("Steps", f"round(sum(increase(inflight_step_out_of_memory_total{{{PODS}}}[{RANGE}])))"),
                steps=((None, style.GOOD), (1, style.WARNING)),
            ),
            "Requests refused": number(
                "reqps",
                "Requests per second that these engines refused in the last five minutes.",
                Query("Refused", rate("inflight_admission_rejections_total", PODS, (), "5m")),
                steps=((None, style.GOOD), (0.1, style.WARNING)),
            ),
            "Step time p95": number(
                "s",
                "95th percentile of the duration of a step in the last five minutes. Each running request gets at "
                "most one token in a step, so this is close to the time per output token.",
                Query("p95", quantile(0.95, STEP, PODS, (), "5m")),
            ),
            "Slots empty": number(
                "percentunit",
                "Share of max_num_seqs without a request although requests wait: the KV cache or a class limit holds "
                "them back, not max_num_seqs.",
                Query("Empty", f"max(inflight_slots_wasted_ratio{{{PODS}}})"),
                steps=((None, style.GOOD), (0.5, style.WARNING)),
                decimals=0,
            ),
        },
        Row("Steps", 16, 8): {
            "Step time by part": lines(
                "s",
                "Mean seconds of a step, split by the fitted cost of steps. The dashed line is the measured mean: the "
                "gap between both is the error of the fit.",
                *parts(PODS),
                Query("Measured", mean(STEP, PODS), style.MEASURED, dashed=True),
                stacked=True,
            ),
            "Scheduler and model": lines(
                "s",
                "Mean seconds of a step in the scheduler (planning, and taking tokens in) and in the rest: forward "
                "pass and sampling. Where steps overlap, the scheduler plans while the step before is computed.",
                Query("Whole step", mean(STEP, PODS), style.OUTPUT),
                Query("Scheduler", mean("inflight_schedule_duration_seconds", PODS), style.WAITING),
            ),
            "Step duration": lines("s", "Percentiles of the duration of a step.", *percentiles(STEP, PODS)),
        },
        Row("Batches", 9, 8): {
            "Batch make-up": lines(
                "short",
                "Mean tokens of a step: a token for each request that decodes, and prompt tokens of prefill chunks.",
                Query("Decode", per_term("inflight_step_work_total", PODS, "decode_sequence"), style.OUTPUT),
                Query("Prefill", per_term("inflight_step_work_total", PODS, "prefill_token"), style.PROMPT),
                stacked=True,
            ),
            "Tokens of a step": lines(
                "short",
                "Percentiles of the tokens computed in a step.",
                *percentiles(_TOKENS, PODS, 0.5, 0.95),
                Query(
                    "max_num_batched_tokens",
                    f"min(inflight_max_num_batched_tokens{{{PODS}}})",
                    style.TARGET,
                    dashed=True,
                    about=_LIMIT,
                ),
            ),
            "Requests with a slot": lines(
                "short",
                "Requests that run, by pod.",
                Query("{{pod}}", f"max by (pod) (vllm:num_requests_running{{{PODS}}})"),
                Query("max_num_seqs", f"min(inflight_max_num_seqs{{{PODS}}})", style.TARGET, dashed=True, about=_LIMIT),
            ),
        },
        Row("Caches", 9, 8): {
            "Prefix cache hits": lines(
                "percentunit",
                "Share of prompt tokens that were found in the prefix cache and not computed again.",
                Query(
                    "Hits",
                    ratio(rate("vllm:prefix_cache_hits_total", PODS), rate("vllm:prefix_cache_queries_total", PODS)),
                    style.READY,
                ),
                top=1,
            ),
            "KV cache by pod": lines(
                "percentunit",
                "Share of the KV cache in use, by pod.",
                Query("{{pod}}", f"max by (pod) (vllm:kv_cache_usage_perc{{{PODS}}})"),
                top=1,
            ),
            "Preemptions": lines(
                "short",
                "Requests per second that lost their slot.",
                Query("Preemptions/s", rate("vllm:num_preemptions_total", PODS), style.WAITING),
                least_top=style.FEW_PER_SECOND,
            ),
        },
        Row("KV cache behind the devices", 9, 8): {
            "Blocks by tier": lines(
                "short",
                "KV blocks in host memory (`engine.kvCache.swap`) and on the disk behind it (`engine.kvCache.disk`), "
                "and those of them that requests load per second. A tier that the engines do not have has no line.",
                Query("In {{tier}}", f"sum by (tier) (inflight_tier_blocks{{{PODS}}})"),
                Query("Loaded from {{tier}}/s", rate("inflight_tier_hit_blocks_total", PODS, ("tier",))),
            ),
            "Copies by tier": lines(
                "Bps",
                "Bytes per second that are copied to each tier, and loaded from it: from the disk to host memory, from "
                "other engines (`peer`) to the device. The dashed lines are the speed of loads as the slowest pod "
                "measured it.",
                Query("To {{tier}}", rate("inflight_tier_stored_bytes_total", PODS, ("tier",))),
                Query("From {{tier}}", rate("inflight_tier_loaded_bytes_total", PODS, ("tier",))),
                Query(
                    "Measured for {{tier}}", f"min by (tier) (inflight_tier_bytes_per_second{{{PODS}}})", dashed=True
                ),
            ),
            "Failed copies and refused loads": lines(
                "short",
                "Blocks per second that were not what was stored, or were not written. Requests per second that "
                "compute blocks which the disk has, by reason: that takes less time (`slower`), the disk hangs "
                "(`stalled`), host memory waits for as much as it may (`full`), not all came in time (`late`).",
                Query("Failed: {{tier}}", rate("inflight_tier_failed_blocks_total", PODS, ("tier",))),
                Query("Not written: {{tier}}", rate("inflight_tier_dropped_blocks_total", PODS, ("tier",))),
                Query("Refused: {{reason}}", rate("inflight_disk_refused_loads_total", PODS, ("reason",))),
                least_top=style.FEW_PER_SECOND,
            ),
        },
        Row("Requests", 12, 8): {
            "Rejections": lines(
                "reqps",
                "Requests per second that were refused, by reason. Clients got 503, or 400 where the request can "
                "never fit (`never_fits`).",
                Query("{{reason}}", rate("inflight_admission_rejections_total", PODS, ("reason",))),
                stacked=True,
                least_top=style.FEW_PER_SECOND,
            ),
            "Finished requests": lines(
                "reqps",
                "Requests per second that ended, by reason.",
                Query("{{finished_reason}}", rate("vllm:request_success_total", PODS, ("finished_reason",))),
                stacked=True,
                colors=_FINISHED,
            ),
            "Aborted and resubmitted requests": lines(
                "reqps",
                "Requests per second that ended before they were complete (the client left, a timeout, the end of a "
                "drain), and requests that were submitted again to a new engine process.",
                Query("Aborted", rate("inflight_requests_cancelled_total", PODS), style.WAITING),
                Query("Resubmitted", rate("inflight_requests_resubmitted_total", PODS), style.BAD),
                least_top=style.FEW_PER_SECOND,
            ),
        },
        Row("Processes", 9, 12): {
            "Process memory": lines(
                "bytes",
                "Resident memory of the API process and of the engine's processes, by pod. At the pod's memory limit "
                "the kernel kills the engine.",
                Query(
                    "{{pod}} {{process}}", f"max by (pod, process) (inflight_process_resident_memory_bytes{{{PODS}}})"
                ),
            ),
            "Steps per second": lines(
                "ops",
                "Steps that engines compute, by pod. An engine with running requests and no steps hangs.",
                Query("{{pod}}", rate(f"{STEP}_count", PODS, ("pod",))),
            ),
        },
    },
    pods=True,
)
