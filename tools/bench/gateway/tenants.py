"""Limits, API keys and isolation of tenants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.bench.gateway import isolation, limits
from tools.bench.gateway.isolation import ARMS, Isolated
from tools.bench.gateway.limits import Limits

__all__ = ["ARMS", "Tenancy", "measure", "table"]


@dataclass(frozen=True, slots=True)
class Tenancy:
    """Results about tenants. Attributes: limits: None: not measured."""

    limits: Limits | None
    isolation: list[Isolated]


def measure(folder: Path, minutes: int, seconds: float, arms: Sequence[str], say: Callable[[str], None]) -> Tenancy:
    """Measures limits and isolation. Args: minutes: of the limits; 0: not measured. seconds: of each run of an arm of
    `isolation`. Raises: RuntimeError: a process did not start, or the gateway did not take a key."""
    found = None
    if minutes:
        say(f"limits and keys: {minutes} minutes")
        found = limits.measure(folder / "limits", minutes)
    return Tenancy(found, isolation.measure(folder / "isolation", seconds, arms, say))


def table(found: Tenancy) -> list[str]:
    """Lines for a terminal."""
    return [*(_limits_table(found.limits) if found.limits is not None else []), *_isolation_table(found.isolation)]


def _limits_table(found: Limits) -> list[str]:
    lines = ["", f"{'limit':<12} {'limit':>6} {'asked':>7} {'admitted':<24} {'most':>6} {'refused':>8} {'faults':>7}"]
    for row in found.limits:
        admitted = ", ".join(str(each) for each in row.admitted)
        line = f"{row.name:<12} {row.limit:>6} {row.asked:>7} {admitted:<24} {row.most:>6} {row.refused:>8}"
        lines.append(f"{line} {row.incomplete + row.other:>7}")
    lines.append(
        "admitted: in each minute (concurrent: open at once); most: in any 60 s; faults: 429 without the headers,"
    )
    lines.append("and other answers")
    keys = found.rotated
    lines += [
        "",
        f"Keys rotated {keys.rotations} times under {keys.requests} requests: {keys.refused} with a valid key refused,",
        f"{keys.revived} with a removed key admitted after its first 401; new keys valid within {keys.seen_s:.2f} s of",
        f"the change of the file, removed ones refused within {keys.gone_s:.2f} s",
    ]
    return lines


def _isolation_table(found: Sequence[Isolated]) -> list[str]:
    """The columns `x` are the quotient to the same arm alone."""
    head = f"{'arm':<12} {'flood':>5} {'requests':>8} {'failed':>6}"
    names = ("ttft_p50", "ttft_p95", "latency_p50", "latency_p95")
    head += "".join(f" {name.replace('_', ' ').replace('ttft', 'TTFT') + ' s':>15} {'x':>5}" for name in names)
    lines, alone = ["", f"{head} {'others/s':>9}"], dict[str, Isolated]()
    for row in found:
        line = f"{row.arm:<12} {'yes' if row.flooded else 'no':>5} {row.requests:>8} {row.failed:>6}"
        for name in names:
            value, base = getattr(row, name), getattr(alone.get(row.arm, row), name)
            line += f" {value:>15.3f} {value / base:>5.2f}"
        if not row.flooded:
            alone[row.arm] = row
        lines.append(f"{line} {row.others_per_s:>9.2f}")
    return lines
