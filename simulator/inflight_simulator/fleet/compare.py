"""All scalers on the same requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from inflight_simulator.fleet.config import FleetConfig
from inflight_simulator.fleet.named import SPECIAL, simulate_named
from inflight_simulator.fleet.outcome import FleetRun
from inflight_simulator.fleet.requests import Requests
from inflight_simulator.fleet.summary import FleetSummary
from inflight_simulator.report import aligned
from inflight_simulator.summary import Distribution

KEPT = 0.99
"""Share of requests in target from which scalers are compared by replica-hours."""

Finished = Callable[[str, FleetRun], None]


def compare(
    names: Sequence[str], requests: Requests, config: FleetConfig, processes: int = 1, finished: Finished | None = None
) -> dict[str, FleetRun]:
    """Each scaler's run, in the order of `names`.

    Args:
        processes: that simulate at the same time.
        finished: called with each run as it ends.
    """
    runs: dict[str, FleetRun] = {}
    for name, run in _runs(names, requests, config, processes):
        runs[name] = run
        if finished is not None:
            finished(name, run)
    return {name: runs[name] for name in names}


def _runs(
    names: Sequence[str], requests: Requests, config: FleetConfig, processes: int
) -> Iterable[tuple[str, FleetRun]]:
    if processes == 1:
        yield from ((name, simulate_named(name, requests, config)) for name in names)
        return
    with ProcessPoolExecutor(processes) as pool:
        pending = {pool.submit(simulate_named, name, requests, config): name for name in names}
        yield from ((pending[each], each.result()) for each in as_completed(pending))


def ranked(summaries: Mapping[str, FleetSummary]) -> list[str]:
    """Scalers that meet the targets first, by cost; then the others, by attainment."""

    def rank(name: str) -> tuple[bool, float]:
        summary = summaries[name]
        kept = summary.attainment >= KEPT
        return not kept, summary.replica_hours if kept else -summary.attainment

    return sorted(summaries, key=rank)


def followed(summaries: Mapping[str, FleetSummary]) -> list[str]:
    """The scalers plotted over time: Inflight's own, and the best three others."""
    special = [name for name in summaries if name in SPECIAL]
    return special + [name for name in ranked(summaries) if name not in SPECIAL][:3]


def comparison_table(summaries: Mapping[str, FleetSummary]) -> str:
    """A row for each scaler, `ranked`."""
    header = ["scaler", "in target", "replica-hours", "reversals", "longest out, s"]
    header += ["TTFT p50", "p95", "p99, s", "TPOT p50", "p95", "p99, ms"]
    rows = [header]
    for name in ranked(summaries):
        each = summaries[name]
        numbers = [f"{each.attainment:.2%}", f"{each.replica_hours:.2f}", str(each.reversals)]
        latencies = [*_percentiles(each.ttft, 1.0, 3), *_percentiles(each.tpot, 1e3, 1)]
        rows.append([name, *numbers, f"{each.longest_out_of_target_s:g}", *latencies])
    return "\n".join(aligned(rows))


def _percentiles(of: Distribution, factor: float, digits: int) -> list[str]:
    return ["-" if value is None else f"{factor * value:.{digits}f}" for value in (of.p50, of.p95, of.p99)]
