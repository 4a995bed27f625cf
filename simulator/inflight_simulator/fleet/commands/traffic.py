"""Statistics of the requests of a file, on average and in the busiest minute."""

from __future__ import annotations

import msgspec
import numpy as np

from inflight_cost.capacity import Workload
from inflight_simulator.fleet.requests import Counts, Requests

PEAK_S = 60.0
_STEP_S = 5.0


class Traffic(msgspec.Struct, frozen=True):
    """Summary of the requests of a simulation.

    Attributes:
        requests: of all seconds.
        requests_per_second, peak_requests_per_second: on average, and in the busiest minute.
        prompt_tokens, output_tokens: means of all requests.
    """

    requests: int
    seconds: float
    requests_per_second: float
    peak_requests_per_second: float
    prompt_tokens: float
    output_tokens: float


def workload_of(prompt_tokens: Counts, output_tokens: Counts) -> Workload:
    """Returns the workload of requests of these sizes, without a prefix cache."""
    prompt, output = prompt_tokens.astype(np.float64), output_tokens.astype(np.float64)
    mean = float(prompt.mean())
    return Workload(mean, mean, float((prompt**2).mean()), float(output.mean()), float((output**2).mean()))


def busiest(requests: Requests) -> slice:
    """The requests of the minute with the most prompt and output tokens. A shorter file counts as one minute."""
    begin, end = float(requests.arrival_s[0]), float(requests.arrival_s[-1])
    starts = np.arange(begin, max(begin, end - PEAK_S) + _STEP_S, _STEP_S)
    low, high = np.searchsorted(requests.arrival_s, [starts, starts + PEAK_S], "left")
    tokens = np.append(0, np.cumsum(requests.prompt_tokens + requests.output_tokens))
    best = int(np.argmax(tokens[high] - tokens[low]))
    return slice(int(low[best]), int(high[best]))


def describe(requests: Requests) -> Traffic:
    seconds = max(PEAK_S, float(requests.arrival_s[-1] - requests.arrival_s[0]))
    peak = busiest(requests)
    return Traffic(
        requests=len(requests),
        seconds=seconds,
        requests_per_second=len(requests) / seconds,
        peak_requests_per_second=(peak.stop - peak.start) / PEAK_S,
        prompt_tokens=float(requests.prompt_tokens.mean()),
        output_tokens=float(requests.output_tokens.mean()),
    )


def doubled(requests: Requests, seed: int) -> Requests:
    """Returns twice the load: each request arrives twice, the second up to a second later."""
    later = np.random.default_rng(seed).uniform(0.0, 1.0, len(requests))
    times = np.append(requests.arrival_s, requests.arrival_s + later)
    return Requests.sorted(
        *(times, np.tile(requests.prompt_tokens, 2), np.tile(requests.output_tokens, 2), 2 * requests.hash_ids),
        hash_tokens=requests.hash_tokens,
        tenants=2 * requests.tenants,
    )
