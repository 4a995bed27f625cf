"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from inflight_simulator.outcome import Outcome, Run
from inflight_simulator.summary import Distribution, Summary, distribution

FEW = 16
"""Most requests that are listed one by one."""


def run_table(run: Run, summary: Summary, batching: str) -> str:
    """Returns the table of a simulation."""
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
        f"preemptions      {summary.preemptions}, {summary.loaded_blocks} KV blocks loaded from host memory",
    ]
    if run.prefix_queries:
        share = run.prefix_hits / run.prefix_queries
        lines.append(f"prefix cache     {share:.1%} of {run.prefix_queries} prompt tokens were in it")
    rows = [
        [name, *(_number(value) for value in (latency.mean, latency.p50, latency.p95, latency.p99))]
        for name, latency in (
            ("TTFT", summary.ttft),
            ("TPOT", summary.tpot),
            ("longest gap between tokens", _gaps(run)),
            ("service latency", summary.service_latency),
            ("end-to-end latency", summary.e2e_latency),
        )
    ]
    lines += ["", *aligned([["seconds", "mean", "p50", "p95", "p99"], *rows])]
    if len(run.outcomes) <= FEW:
        lines += ["", *aligned(_request_rows({"first token": (run, _first_token), "leaves": (run, _leaves)}))]
    return "\n".join(lines)


def comparison_table(runs: Mapping[str, tuple[Run, Summary]]) -> str:
    """Simulations of the same requests side by side; in brackets how many times the first one's."""
    rows: list[list[str]] = [["", *runs]]
    for label, value_of in _COMPARED:
        first, *others = (value_of(run, summary) for run, summary in runs.values())
        cells = [_number(first)]
        for value in others:
            ratio = f" ({value / first:.2f}x)" if value is not None and first else ""
            cells.append(_number(value) + ratio)
        rows.append([label, *cells])
    lines = aligned(rows)
    if all(len(run.outcomes) <= FEW for run, _ in runs.values()):
        for label, time_of in (
            ("seconds at which the first token comes", _first_token),
            ("seconds at which the request leaves", _leaves),
        ):
            columns = {name: (run, time_of) for name, (run, _) in runs.items()}
            lines += ["", label, *aligned(_request_rows(columns))]
    return "\n".join(lines)


_COMPARED: tuple[tuple[str, Callable[[Run, Summary], float | None]], ...] = (
    ("steps", lambda run, summary: summary.steps),
    ("makespan, s", lambda run, summary: summary.makespan_s),
    ("requests/s", lambda run, summary: summary.throughput_rps),
    ("output tokens/s", lambda run, summary: summary.throughput_tokens_s),
    ("slots x steps with a token, %", lambda run, summary: 100 * summary.slot_efficiency),
    ("service latency, mean s", lambda run, summary: summary.service_latency.mean),
    ("end-to-end latency, mean s", lambda run, summary: summary.e2e_latency.mean),
    ("end-to-end latency, p95 s", lambda run, summary: summary.e2e_latency.p95),
    ("TTFT, mean s", lambda run, summary: summary.ttft.mean),
    ("TTFT, p95 s", lambda run, summary: summary.ttft.p95),
    ("TPOT, mean s", lambda run, summary: summary.tpot.mean),
    ("TPOT, p95 s", lambda run, summary: summary.tpot.p95),
    ("longest gap between tokens, mean s", lambda run, summary: _gaps(run).mean),
    ("KV cache, at most %", lambda run, summary: 100 * summary.max_kv_usage),
)


def _gaps(run: Run) -> Distribution:
    """Returns the distribution of the longest gap of each request with more than one token."""
    return distribution([each.longest_gap for each in run.outcomes if each.arrival.output_tokens > 1])


def _first_token(outcome: Outcome) -> float:
    return outcome.first_token_s


def _leaves(outcome: Outcome) -> float:
    return outcome.finished_s


def _request_rows(columns: Mapping[str, tuple[Run, Callable[[Outcome], float]]]) -> list[list[str]]:
    """Each request in order of arrival, with times of it by column."""
    rows = [["request", "prompt", "output", "arrives", *columns]]
    outcomes = [{each.request_id: each for each in run.outcomes} for run, _ in columns.values()]
    for request_id, outcome in sorted(outcomes[0].items()):
        arrival = outcome.arrival
        times = [time_of(by_id[request_id]) for by_id, (_, time_of) in zip(outcomes, columns.values(), strict=True)]
        rows.append(
            [
                request_name(request_id),
                str(arrival.prompt_tokens),
                str(arrival.output_tokens),
                *(f"{time:.3f}" for time in (arrival.arrival_s, *times)),
            ]
        )
    return rows


def request_name(request_id: int) -> str:
    """A, B, C, ... where there are few, else a number from 0."""
    return chr(ord("A") + request_id) if request_id < FEW else str(request_id)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _number(value: float | None) -> str:
    """Formats four significant digits, without an exponent and without trailing zeros."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return str(value)
    if abs(value) >= 1000:
        return f"{value:.1f}"
    return f"{value:#.4g}" if abs(value) >= 1e-4 or value == 0 else f"{value:.2e}"
