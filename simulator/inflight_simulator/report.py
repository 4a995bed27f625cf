"""Tables for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from inflight_simulator.outcome import Run
from inflight_simulator.summary import Distribution, Summary

FEW = 16
"""Requests that are shown one by one."""

_Value = float | int | str | None


def run_table(run: Run, summary: Summary, batching: str) -> str:
    """One simulation."""
    refused = f", {len(run.refusals)} refused" if run.refusals else ""
    lines = [
        f"{summary.num_requests} requests{refused}, {batching}",
        "",
        f"steps            {summary.steps}",
        f"makespan         {_number(summary.makespan_s)} s",
        f"throughput       {_number(summary.throughput_rps)} requests/s, "
        f"{_number(summary.throughput_tokens_s)} output tokens/s",
        f"slots            at most {summary.max_running} of {run.max_num_seqs} in use, "
        f"{summary.slot_efficiency:.1%} of slots x steps gave a token",
        f"KV cache         at most {summary.max_kv_usage:.1%} in use",
        f"preemptions      {summary.preemptions}, of which {summary.swaps} swapped",
    ]
    if run.prefix_queries:
        share = run.prefix_hits / run.prefix_queries
        lines.append(f"prefix cache     {share:.1%} of {run.prefix_queries} prompt tokens were in it")
    rows = [
        [name, *(_number(value) for value in (latency.mean, latency.p50, latency.p95, latency.p99))]
        for name, latency in _latencies(summary)
    ]
    lines += ["", *_aligned([["seconds", "mean", "p50", "p95", "p99"], *rows])]
    if len(run.outcomes) <= FEW:
        lines += ["", *_aligned(_request_rows({"": run}))]
    return "\n".join(lines)


def comparison_table(runs: Mapping[str, tuple[Run, Summary]]) -> str:
    """Simulations of the same requests side by side; in brackets how many times the first one's."""
    summaries = [summary for _, summary in runs.values()]
    rows: list[list[str]] = [["", *runs]]
    for label, value_of in _COMPARED:
        values = [value_of(summary) for summary in summaries]
        first = values[0]
        cells = [_number(first)]
        for value in values[1:]:
            ratio = f" ({value / first:.2f}x)" if value is not None and first else ""
            cells.append(_number(value) + ratio)
        rows.append([label, *cells])
    lines = _aligned(rows)
    if all(len(run.outcomes) <= FEW for run, _ in runs.values()):
        lines += ["", *_aligned(_request_rows({name: run for name, (run, _) in runs.items()}))]
    return "\n".join(lines)


_COMPARED: tuple[tuple[str, Callable[[Summary], float | None]], ...] = (
    ("steps", lambda summary: summary.steps),
    ("makespan, s", lambda summary: summary.makespan_s),
    ("requests/s", lambda summary: summary.throughput_rps),
    ("output tokens/s", lambda summary: summary.throughput_tokens_s),
    ("slots x steps with a token, %", lambda summary: 100 * summary.slot_efficiency),
    ("service latency, mean s", lambda summary: summary.service_latency.mean),
    ("end-to-end latency, mean s", lambda summary: summary.e2e_latency.mean),
    ("end-to-end latency, p95 s", lambda summary: summary.e2e_latency.p95),
    ("TTFT, mean s", lambda summary: summary.ttft.mean),
    ("TTFT, p95 s", lambda summary: summary.ttft.p95),
    ("TPOT, mean s", lambda summary: summary.tpot.mean),
    ("TPOT, p95 s", lambda summary: summary.tpot.p95),
    ("KV cache, at most %", lambda summary: 100 * summary.max_kv_usage),
)


def _latencies(summary: Summary) -> tuple[tuple[str, Distribution], ...]:
    return (
        ("TTFT", summary.ttft),
        ("TPOT", summary.tpot),
        ("service latency", summary.service_latency),
        ("end-to-end latency", summary.e2e_latency),
    )


def _request_rows(runs: Mapping[str, Run]) -> list[list[str]]:
    """Each request in order of arrival, with its first token and its end in each run."""
    header = ["request", "prompt", "output", "arrives"]
    for name in runs:
        header += [f"{name}: first token" if name else "first token", "leaves"]
    rows = [header]
    by_id = [{outcome.request_id: outcome for outcome in run.outcomes} for run in runs.values()]
    for request_id, outcome in sorted(by_id[0].items()):
        arrival = outcome.arrival
        row: list[_Value] = [request_name(request_id), arrival.prompt_tokens, arrival.output_tokens, arrival.arrival_s]
        for outcomes in by_id:
            row += [outcomes[request_id].first_token_s, outcomes[request_id].finished_s]
        rows.append([_number(value) for value in row])
    return rows


def request_name(request_id: int) -> str:
    """A, B, C, ... where there are few, else a number from 0."""
    return chr(ord("A") + request_id) if request_id < FEW else str(request_id)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _number(value: _Value) -> str:
    """Four significant digits, without an exponent and without zeros that say nothing."""
    if value is None:
        return "-"
    if isinstance(value, int | str):
        return str(value)
    if abs(value) >= 1000:
        return f"{value:.1f}"
    return f"{value:#.4g}" if abs(value) >= 1e-4 or value == 0 else f"{value:.2e}"
