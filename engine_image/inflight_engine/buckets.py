"""Histogram bucket boundaries, one reason for each family.

vLLM's names are kept, not its boundaries: dashboards use `histogram_quantile`, which works on any, and vLLM's begin too
high (10 ms for inter-token latency, 0.3 s for queue time) to steer on.
"""

from __future__ import annotations

TIME_TO_FIRST_TOKEN = (
    *(0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 4, 5, 7.5, 10),
    *(20, 40, 80, 160, 320),
)
"""Seconds. A short prompt on an idle GPU takes 10 ms; behind a full queue on CPU it is minutes. Between 0.1 and 10 s
all round numbers are boundaries: the share of requests within a target is exact only at one."""

TIME_PER_OUTPUT_TOKEN = (
    *(0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.045, 0.05),
    *(0.06, 0.07, 0.075, 0.08, 0.09, 0.1, 0.12, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.8, 2, 5),
)
"""Seconds, means of whole requests. Limits are tuned until p95 is near the target, so most requests lie close to it and
a wide bucket around it would hide on which side: all round numbers are boundaries."""

INTER_TOKEN = (0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.2, 0.4, 0.8, 2, 5)
"""Seconds. A small model on a GPU decodes in 2 ms; a prefill chunk in the same step makes hundreds of milliseconds, and
a preemption seconds."""

QUEUE_TIME = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10, 20, 40, 80, 160)
"""Seconds. An idle engine admits within a step (milliseconds); waits of tens of milliseconds are the first sign of too
few slots, seconds the sign of too few replicas; beyond come only queue timeouts."""

END_TO_END = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 240, 480, 960)
"""Seconds. From a ten-token answer of a small model to a long one on CPU."""

REQUEST_TOKENS = tuple(number * 10**power for power in range(6) for number in (1, 2, 5))
"""Tokens of a prompt or an answer, to half a million: three boundaries a decade, as in vLLM."""

REQUEST_N = (1, 2, 5, 10, 20, 50, 100)
"""Answers to a prompt, at most 128."""

STEP_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Tokens computed in a step. Powers of two: pure decode steps show as the batch size, prefill as the token budget."""

STEP_DURATION = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10)
"""Seconds. From a decode step of a small model on a GPU to a full prefill budget on CPU."""

SCHEDULE_DURATION = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 0.1)
"""Seconds. The scheduler aims at tens of microseconds; a millisecond of every step would already be felt."""
