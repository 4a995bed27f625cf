"""A simulation in numbers: the object that `--json` prints."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from inflight_simulator.outcome import Run


class Distribution(msgspec.Struct, frozen=True):
    """Seconds; percentiles interpolate linearly. None: no observations."""

    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None


class Summary(msgspec.Struct, frozen=True):
    """Results of a simulation.

    Attributes:
        num_requests: served ones.
        steps: forward passes.
        makespan_s: from the first arrival to the last request's end.
        throughput_rps, throughput_tokens_s: served requests, and their output tokens, over the makespan.
        service_latency: from the start of the step that admits a request to its end; in static batching the length of
            its batch.
        e2e_latency: from arrival to end.
        ttft: from arrival to the first token.
        tpot: from the first token to the end, for each token after the first; requests of one token have none.
        loaded_blocks: KV blocks that starts loaded from host memory.
        slot_efficiency: output tokens over slots x steps. Of one static batch of B: sum(L) / (B x max L).
        max_running: maximum requests that held a slot.
        max_kv_usage: largest share of the KV blocks in use, 0..1.
    """

    num_requests: int
    steps: int
    makespan_s: float
    throughput_rps: float
    throughput_tokens_s: float
    service_latency: Distribution
    e2e_latency: Distribution
    ttft: Distribution
    tpot: Distribution
    preemptions: int
    loaded_blocks: int
    slot_efficiency: float
    max_running: int
    max_kv_usage: float


def summarize(run: Run) -> Summary:
    """Summarizes a run that served at least one request."""
    outcomes = run.outcomes
    begin = min(outcome.arrival.arrival_s for outcome in outcomes)
    makespan = max(outcome.finished_s for outcome in outcomes) - begin
    output_tokens = sum(outcome.arrival.output_tokens for outcome in outcomes)
    return Summary(
        num_requests=len(outcomes),
        steps=run.num_steps,
        makespan_s=makespan,
        throughput_rps=len(outcomes) / makespan,
        throughput_tokens_s=output_tokens / makespan,
        service_latency=distribution([outcome.service_latency for outcome in outcomes]),
        e2e_latency=distribution([outcome.e2e_latency for outcome in outcomes]),
        ttft=distribution([outcome.ttft for outcome in outcomes]),
        tpot=distribution([outcome.tpot for outcome in outcomes if outcome.tpot is not None]),
        preemptions=run.num_preemptions,
        loaded_blocks=run.num_loaded,
        slot_efficiency=output_tokens / (run.max_num_seqs * run.num_steps),
        max_running=max(run.series.running),
        max_kv_usage=max(run.series.kv_usage),
    )


def distribution(values: Sequence[float] | npt.NDArray[np.float64]) -> Distribution:
    if not len(values):
        return Distribution(None, None, None, None)
    p50, p95, p99 = np.percentile(values, (50, 95, 99)).tolist()
    return Distribution(float(np.mean(values)), p50, p95, p99)


_OF_OUTCOME = (
    "admitted_s",
    "first_token_s",
    "finished_s",
    "service_latency",
    "e2e_latency",
    "ttft",
    "tpot",
    "longest_gap",
)
_OF_ARRIVAL = ("request", "arrival_s", "prompt_tokens", "output_tokens", "class", "tenant")
REQUEST_COLUMNS = (*_OF_ARRIVAL, *_OF_OUTCOME, "preemptions")


def write_requests(path: Path, run: Run) -> None:
    """A CSV row for each request, in order of arrival; a refused one has no times.

    Raises:
        OSError: the file cannot be written.
    """
    served = {outcome.request_id: outcome for outcome in run.outcomes}
    refused = {refusal.request_id: refusal for refusal in run.refusals}
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(REQUEST_COLUMNS)
        for request_id in sorted(served | refused):
            outcome = served.get(request_id)
            arrival = refused[request_id].arrival if outcome is None else outcome.arrival
            row = [
                request_id,
                round(arrival.arrival_s, 6),
                arrival.prompt_tokens,
                arrival.output_tokens,
                arrival.service_class,
                arrival.tenant,
            ]
            if outcome is None:
                row += [""] * (len(_OF_OUTCOME) + 1)
            else:
                times = [getattr(outcome, name) for name in _OF_OUTCOME]
                row += ["" if time is None else round(time, 6) for time in times] + [outcome.num_preemptions]
            writer.writerow(row)
