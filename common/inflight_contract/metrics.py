"""Metrics that every server with live limits has beside vLLM's own: the operator reads them from engines and from vLLM
with the plugin. Each is a name, of counters without `_total`, and a help text."""

from __future__ import annotations

from typing import Final

KV_CACHE_TOKENS: Final = ("inflight_kv_cache_tokens", "Capacity of the KV cache in tokens.")
WAITING_PROMPT_TOKENS: Final = (
    "inflight_waiting_prompt_tokens",
    "Prompt tokens not yet computed, of waiting requests and requests in prefill.",
)
DRAINING: Final = ("inflight_draining", "1 while the engine drains.")
MAX_NUM_SEQS: Final = ("inflight_max_num_seqs", "Limit in force of the requests that run at once.")
MAX_NUM_SEQS_CAPACITY: Final = ("inflight_max_num_seqs_capacity", "Upper bound of max_num_seqs.")
MAX_NUM_BATCHED_TOKENS: Final = ("inflight_max_num_batched_tokens", "Limit in force of the tokens in a step.")
MAX_NUM_BATCHED_TOKENS_CAPACITY: Final = (
    "inflight_max_num_batched_tokens_capacity",
    "Upper bound of max_num_batched_tokens.",
)
RUNTIME_CONFIG_REVISION: Final = ("inflight_runtime_config_revision", "Revision of the limits in force.")
OUTPUT_TOKENS_MEAN: Final = (
    "inflight_output_tokens_mean",
    "Mean tokens of an output. Running requests count as censored observations.",
)
OUTPUT_TOKENS_SECOND_MOMENT: Final = ("inflight_output_tokens_second_moment", "Mean of squared output lengths.")
STEP_COST_SECONDS: Final = (
    "inflight_step_cost_seconds",
    "Seconds that each term adds to a step, fitted to recent steps.",
)
STEP_COST_CURVE_SECONDS: Final = (
    "inflight_step_cost_curve_seconds",
    "Seconds that a number of tokens adds to a step, where the cost is not linear.",
)
STEP_COST_ERROR_RATIO: Final = ("inflight_step_cost_error_ratio", "Median relative error of the fitted step cost.")
STEP_COST_STEPS: Final = ("inflight_step_cost_steps", "Steps behind the fit. Older steps count less.")
ADMISSION_REJECTIONS: Final = ("inflight_admission_rejections", "Rejected requests by reason.")
ARRIVED_REQUESTS: Final = ("inflight_arrived_requests", "Accepted requests; a request with n answers counts n times.")
ARRIVED_PROMPT_TOKENS: Final = ("inflight_arrived_prompt_tokens", "Prompt tokens of accepted requests.")
ARRIVED_PROMPT_TOKENS_SQUARED: Final = (
    "inflight_arrived_prompt_tokens_squared",
    "Sum of squared prompt lengths of accepted requests.",
)
