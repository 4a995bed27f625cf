"""The engines of a service: step time by part, batch make-up, rejections."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from deploy.dashboards import style
from deploy.dashboards.frame import Row, assemble, query_variable, service_variables
from deploy.dashboards.panels import Panel, Query, lines, number, percentiles
from deploy.dashboards.queries import ONE_SERVICE, PODS, RANGE, RATE, mean, quantile, rate, ratio

STEP = "inflight_step_duration_seconds"
TERMS = {
    "step": ("Fixed cost", "yellow"),
    "decode_sequence": ("Decode: tokens", "blue"),
    "decode_kv_token": ("Decode: KV reads", "light-blue"),
    "prefill_token": ("Prefill: tokens", "purple"),
    "prefill_context_token": ("Prefill: attention", "light-purple"),
    "copied_token": ("Swapping", "orange"),
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


def dashboard() -> Dashboard:
    pods = query_variable("pod", "Pod", f"label_values(inflight_draining{{{ONE_SERVICE}}}, pod)", several=True)
    return assemble(
        "engine",
        "Inflight / Engine",
        "The engine pods of one InferenceService: steps and batches, caches, refused requests, and memory.",
        [*service_variables(several=False), pods],
        [
            Row("Is it fine", 4, [(4, one) for one in _overview()]),
            Row("Steps", 16, [(8, one) for one in _steps()]),
            Row("Batches", 9, [(8, one) for one in _batches()]),
            Row("Caches", 9, [(8, one) for one in _caches()]),
            Row("Requests", 12, [(8, one) for one in _requests()]),
            Row("Processes", 9, [(12, one) for one in _processes()]),
        ],
    )


def per_term(counter: str, selector: str, term: str, window: str = RATE) -> str:
    """Growth of a term's counter per step."""
    grown = rate(counter, f'{selector}, term="{term}"', (), window)
    return ratio(grown, rate(f"{STEP}_count", selector, (), window))


def _overview() -> list[Panel]:
    return [
        number(
            "Engines",
            "Engine pods that Prometheus scrapes.",
            "none",
            [Query(f"count(inflight_draining{{{PODS}}})", "Engines")],
        ),
        number(
            "Engine restarts",
            "Engine processes that were replaced in the time range because they died or hung. Streams that had begun "
            "were lost.",
            "none",
            [Query(f"round(sum(increase(inflight_engine_restarts_total{{{PODS}}}[{RANGE}])))", "Restarts")],
            steps=style.FAULTS,
        ),
        number(
            "Out-of-memory steps",
            "Steps in the time range for which the device had no memory: computed in pieces, or failed.",
            "none",
            [Query(f"round(sum(increase(inflight_step_out_of_memory_total{{{PODS}}}[{RANGE}])))", "Steps")],
            steps=((None, style.GOOD), (1, style.WARNING)),
        ),
        number(
            "Requests refused",
            "Requests per second that these engines refused in the last five minutes.",
            "reqps",
            [Query(rate("inflight_admission_rejections_total", PODS, (), "5m"), "Refused")],
            steps=((None, style.GOOD), (0.1, style.WARNING)),
        ),
        number(
            "Step time p95",
            "95th percentile of the duration of a step in the last five minutes. Each running request gets at most "
            "one token in a step, so this is close to the time per output token.",
            "s",
            [Query(quantile(0.95, STEP, PODS, (), "5m"), "p95")],
        ),
        number(
            "Slots empty",
            "Share of max_num_seqs without a request although requests wait: the KV cache or a class limit holds them "
            "back, not max_num_seqs.",
            "percentunit",
            [Query(f"max(inflight_slots_wasted_ratio{{{PODS}}})", "Empty")],
            steps=((None, style.GOOD), (0.5, style.WARNING)),
            decimals=0,
        ),
    ]


def _steps() -> list[Panel]:
    def part(term: str) -> str:
        return per_term("inflight_step_predicted_seconds_total", PODS, term)

    return [
        lines(
            "Step time by part",
            "Mean seconds of a step, split by the fitted cost of steps. The dashed line is the measured mean: the gap "
            "between both is the error of the fit.",
            "s",
            [
                *(Query(part(term), name, color) for term, (name, color) in TERMS.items()),
                Query(mean(STEP, PODS), "Measured", style.MEASURED, dashed=True),
            ],
            stacked=True,
        ),
        lines(
            "Scheduler and model",
            "Mean seconds of a step in the scheduler (planning, and taking tokens in) and in the rest: forward pass "
            "and sampling. Where steps overlap, the scheduler plans while the step before is computed.",
            "s",
            [
                Query(mean(STEP, PODS), "Whole step", style.OUTPUT),
                Query(mean("inflight_schedule_duration_seconds", PODS), "Scheduler", style.WAITING),
            ],
        ),
        lines(
            "Step duration",
            "Percentiles of the duration of a step.",
            "s",
            percentiles(STEP, PODS),
        ),
    ]


def _batches() -> list[Panel]:
    def work(term: str) -> str:
        return per_term("inflight_step_work_total", PODS, term)

    tokens = "vllm:iteration_tokens_total"
    return [
        lines(
            "Batch make-up",
            "Mean tokens of a step: a token for each request that decodes, and prompt tokens of prefill chunks.",
            "short",
            [
                Query(work("decode_sequence"), "Decode", style.OUTPUT),
                Query(work("prefill_token"), "Prefill", style.PROMPT),
            ],
            stacked=True,
        ),
        lines(
            "Tokens of a step",
            "Percentiles of the tokens computed in a step. The dashed line is the limit in force.",
            "short",
            [
                *percentiles(tokens, PODS, 0.5, 0.95),
                Query(
                    f"min(inflight_max_num_batched_tokens{{{PODS}}})",
                    *("max_num_batched_tokens", style.TARGET),
                    dashed=True,
                ),
            ],
        ),
        lines(
            "Requests with a slot",
            "Requests that run, by pod. The dashed line is the limit in force.",
            "short",
            [
                Query(f"max by (pod) (vllm:num_requests_running{{{PODS}}})", "{{pod}}"),
                Query(f"min(inflight_max_num_seqs{{{PODS}}})", "max_num_seqs", style.TARGET, dashed=True),
            ],
        ),
    ]


def _caches() -> list[Panel]:
    hits = rate("vllm:prefix_cache_hits_total", PODS)
    return [
        lines(
            "Prefix cache hits",
            "Share of prompt tokens that were found in the prefix cache and not computed again.",
            "percentunit",
            [Query(ratio(hits, rate("vllm:prefix_cache_queries_total", PODS)), "Hits", style.READY)],
            top=1,
        ),
        lines(
            "KV cache by pod",
            "Share of the KV cache in use, by pod.",
            "percentunit",
            [Query(f"max by (pod) (vllm:kv_cache_usage_perc{{{PODS}}})", "{{pod}}")],
            top=1,
        ),
        lines(
            "Preemptions and swapping",
            "Requests per second that lost their slot, and blocks of host memory that hold swapped requests.",
            "short",
            [
                Query(rate("vllm:num_preemptions_total", PODS), "Preemptions/s", style.WAITING),
                Query(f"sum(inflight_swapped_blocks{{{PODS}}})", "Swapped blocks", style.PROMPT),
            ],
            least_top=style.FEW_PER_SECOND,
        ),
    ]


def _requests() -> list[Panel]:
    return [
        lines(
            "Rejections",
            "Requests per second that were refused, by reason. Clients got 503, or 400 where the request can never "
            "fit (`never_fits`).",
            "reqps",
            [Query(rate("inflight_admission_rejections_total", PODS, ("reason",)), "{{reason}}")],
            stacked=True,
            least_top=style.FEW_PER_SECOND,
        ),
        lines(
            "Finished requests",
            "Requests per second that ended, by reason.",
            "reqps",
            [Query(rate("vllm:request_success_total", PODS, ("finished_reason",)), "{{finished_reason}}")],
            stacked=True,
            colors=_FINISHED,
        ),
        lines(
            "Aborted and resubmitted requests",
            "Requests per second that ended before they were complete (the client left, a timeout, the end of a "
            "drain), and requests that were submitted again to a new engine process.",
            "reqps",
            [
                Query(rate("inflight_requests_cancelled_total", PODS), "Aborted", style.WAITING),
                Query(rate("inflight_requests_resubmitted_total", PODS), "Resubmitted", style.BAD),
            ],
            least_top=style.FEW_PER_SECOND,
        ),
    ]


def _processes() -> list[Panel]:
    return [
        lines(
            "Process memory",
            "Resident memory of the API process and of the engine's processes, by pod. At the pod's memory limit the "
            "kernel kills the engine.",
            "bytes",
            [
                Query(
                    f"max by (pod, process) (inflight_process_resident_memory_bytes{{{PODS}}})",
                    "{{pod}} {{process}}",
                )
            ],
        ),
        lines(
            "Steps per second",
            "Steps that engines compute, by pod. An engine with running requests and no steps hangs.",
            "ops",
            [Query(rate(f"{STEP}_count", PODS, ("pod",)), "{{pod}}")],
        ),
    ]
