"""Data of the service view: columns that fit, and cell contents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from inflight_kubectl.access.pods import Pod
from inflight_kubectl.access.resources import Decision, Service
from inflight_kubectl.engines.engine_metrics import Figures
from inflight_kubectl.output import age, latency

Tone = Literal["", "good", "warn", "bad", "dim"]
"""Colour of a cell. Each colour is also expressed by a word or a sign in the cell."""

WIDE = 110
"""Width in characters from which latencies stand beside their targets and decisions have their reason."""


LEAST_NAME = 12
_DISPENSABLE = ("LIMITS", "NODE", "RST", "RUN", "LAST", "AGE", "NAMESPACE", "KV", "TOK/S", "QUEUE", "TPOT")
"""Columns that a narrow terminal goes without, the first of them first."""


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Column:
    """Attributes:
    width: width in characters; 0 takes the remaining width.
    right: True if aligned to the right, for numbers.
    """

    name: str
    width: int
    right: bool = False


SORTS: tuple[str, ...] = ("name", "state", "queue", "kv", "ttft", "tpot", "last")
"""Sort keys; all but the name put services that need attention first."""

_URGENCY = {
    state: place
    for place, state in enumerate(
        ("Failing", "Degraded", "Starting", "Waking", "Updating", "Unknown", "Stopped", "Idle", "Asleep", "Ready")
    )
}
_STATE_TONES: dict[str, Tone] = {
    "Ready": "good",
    "Updating": "good",
    "Starting": "warn",
    "Degraded": "warn",
    "Failing": "bad",
    "Stopped": "dim",
    "Idle": "dim",
    "Asleep": "dim",
    "Waking": "warn",
    "Unknown": "dim",
}


def is_wide(width: int, *, namespaces: bool) -> bool:
    """Returns True if there is room for targets and reasons."""
    return width - 13 * namespaces >= WIDE


def columns(width: int, *, namespaces: bool) -> list[Column]:
    """Returns the columns that fit into `width` characters, one space between two.

    Args:
        namespaces: True if services of several namespaces are shown.
    """
    wide = is_wide(width, namespaces=namespaces)
    found = [
        *([Column("NAMESPACE", 12)] if namespaces else []),
        Column("NAME", 18 if wide else 0),
        Column("STATE", 8),
        Column("READY", 7, right=True),
        Column("QUEUE", 5, right=True),
        Column("RUN", 4, right=True),
        Column("KV", 4, right=True),
        Column("TTFT", 12 if wide else 6, right=True),
        Column("TPOT", 12 if wide else 6, right=True),
        Column("LIMITS", 9, right=True),
        Column("LAST", 4, right=True),
        *([Column("DECISION", 0)] if wide else []),
    ]
    return fitted(found, width)


def fitted(found: list[Column], width: int) -> list[Column]:
    """Returns the columns with the room that is left in the one without a width; if that is too little for a name,
    columns are dropped in the order of `_DISPENSABLE`."""
    for name in _DISPENSABLE:
        if _rest(found, width) >= LEAST_NAME:
            break
        found = [one for one in found if one.name != name]
    rest = max(LEAST_NAME, _rest(found, width))
    return [Column(one.name, rest, one.right) if one.width == 0 else one for one in found]


def _rest(found: list[Column], width: int) -> int:
    return width - sum(one.width for one in found) - (len(found) - 1)


def service_cells(service: Service, shown: Sequence[Column], now: datetime, *, wide: bool) -> list[Cell]:
    """Returns the cells of one service, cut to their columns."""
    observed, limits = service.observed, service.limits
    last = service.decisions[-1] if service.decisions else None
    cells = {
        "NAMESPACE": Cell(service.namespace),
        "NAME": Cell(service.name),
        "STATE": Cell("Deleting", "warn") if service.deleting else Cell(service.state, _STATE_TONES[service.state]),
        "READY": replicas(service),
        "QUEUE": queue(service),
        "RUN": Cell("-", "dim") if observed is None else Cell(short(observed.running)),
        "KV": share(None if observed is None else observed.kv),
        "TTFT": against(None if observed is None else observed.ttft_p95, service.ttft_target, wide=wide),
        "TPOT": against(None if observed is None else observed.tpot_p95, service.tpot_target, wide=wide),
        "LIMITS": Cell("-", "dim")
        if limits is None
        else Cell(pair(limits.max_num_seqs, limits.max_num_batched_tokens)),
        "LAST": Cell(age(last.time, now) if last else "-", "" if last else "dim"),
        "DECISION": Cell(decision_text(last) if last else "", "dim" if last and not last.applied else ""),
    }
    return [cut(cells[one.name], one.width) for one in shown]


def pod_columns(width: int) -> list[Column]:
    """Returns the columns of a service's pods."""
    found = [
        Column("POD", 0),
        Column("STATE", 12),
        Column("RST", 3, right=True),
        Column("QUEUE", 5, right=True),
        Column("RUN", 4, right=True),
        Column("KV", 4, right=True),
        Column("TOK/S", 5, right=True),
        Column("TTFT", 6, right=True),
        Column("TPOT", 6, right=True),
        *([Column("LIMITS", 10, right=True), Column("NODE", 16)] if width >= WIDE else []),
        Column("AGE", 4, right=True),
    ]
    return fitted(found, width)


def pod_cells(
    service: Service, pod: Pod, figures: Figures | None, shown: Sequence[Column], now: datetime
) -> list[Cell]:
    """Returns the cells of one pod. Values of an unresponsive pod are dimmed: they are from its last response."""
    one, loading = figures or Figures(), None if pod.ready else service.loading.get(pod.name)
    tone: Tone = "good" if pod.serves else "bad" if _broken(pod) else "warn"
    bounds = (
        None
        if one.max_num_seqs is None or one.max_num_batched_tokens is None
        else (one.max_num_seqs, one.max_num_batched_tokens)
    )
    cells = {
        "POD": Cell(pod.name.removeprefix(f"{service.name}-")),
        "STATE": Cell(pod.state if loading is None else f"Loading {loading.share:.0%}", tone),
        "RST": Cell(str(pod.restarts), "warn" if pod.restarts else ""),
        "QUEUE": _count(one.waiting),
        "RUN": _count(one.running),
        "KV": share(one.kv),
        "TOK/S": Cell("-", "dim") if one.tokens_per_s is None else Cell(short(round(one.tokens_per_s))),
        "TTFT": against(one.ttft_p95, service.ttft_target, wide=False),
        "TPOT": against(one.tpot_p95, service.tpot_target, wide=False),
        "LIMITS": Cell("-", "dim") if bounds is None else Cell(pair(*bounds)),
        "NODE": Cell(pod.node or "-"),
        "AGE": Cell(age(pod.created, now)),
    }
    stale = one.problem is not None
    measured = ("QUEUE", "RUN", "KV", "TOK/S", "TTFT", "TPOT", "LIMITS")
    return [
        cut(
            Cell(cells[column.name].text, "dim") if stale and column.name in measured else cells[column.name],
            column.width,
        )
        for column in shown
    ]


def arranged(services: Iterable[Service], sort: str, *, reverse: bool, text: str) -> list[Service]:
    """Returns the services whose name, namespace, state or model contains all words of `text`, in order."""
    words = text.lower().split()
    kept = [
        one
        for one in services
        if all(word in f"{one.namespace}/{one.name} {one.state} {one.model}".lower() for word in words)
    ]
    return sorted(kept, key=lambda one: (_SORT_KEYS[sort](one), one.key), reverse=reverse)


def replicas(service: Service) -> Cell:
    """Returns `2/3` for ready of ordered, with `!1` for those that are blocked."""
    ordered = service.replicas if service.ordered is None else service.ordered
    text = f"{service.ready}/{ordered}"
    if service.blocked:
        return Cell(f"{text} !{service.blocked}", "bad")
    return Cell(text, "" if service.ready >= ordered else "warn")


def against(seconds: float | None, target: float, *, wide: bool) -> Cell:
    """Returns a latency, marked `!` where it is over its target."""
    if seconds is None:
        return Cell(f"-/{latency(target)}" if wide else "-", "dim")
    over = seconds > target
    text = latency(seconds) + ("!" if over else "") + (f"/{latency(target)}" if wide else "")
    return Cell(text, "bad" if over else "warn" if seconds > 0.9 * target else "good")


def queue(service: Service) -> Cell:
    """Returns the number of requests that wait at the engines and at the gateway."""
    if service.queue is None:
        return Cell("-", "dim")
    return Cell(short(service.queue.waiting), "warn" if service.queue.waiting else "")


def share(value: float | None) -> Cell:
    """Returns a share of the KV cache in percent."""
    if value is None:
        return Cell("-", "dim")
    return Cell(f"{value:.0%}", "bad" if value >= 0.95 else "warn" if value >= 0.8 else "")


def pair(max_num_seqs: int, max_num_batched_tokens: int) -> str:
    """Returns both limits, such as `256/8192`; in thousands where they are long."""
    text = f"{max_num_seqs}/{max_num_batched_tokens}"
    return text if len(text) <= 9 else f"{short(max_num_seqs)}/{short(max_num_batched_tokens)}"


def short(number: int) -> str:
    """Returns a count in at most four characters: `999`, `1.2k`, `12k`, `3M`."""
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if number >= size:
            return f"{number / size:.1f}{unit}" if number < 9.95 * size and number % size else f"{number // size}{unit}"
    return str(number)


def decision_text(decision: Decision) -> str:
    """Returns the change and its reason in one line."""
    advice = "" if decision.applied else "advice: "
    return f"{advice}{decision.change}: {decision.reason}"


def cut(cell: Cell, width: int) -> Cell:
    """Returns the cell with at most `width` characters."""
    return cell if len(cell.text) <= width else Cell(f"{cell.text[: width - 1]}…", cell.tone)


def _count(number: int | None) -> Cell:
    return Cell("-", "dim") if number is None else Cell(short(number))


def _broken(pod: Pod) -> bool:
    return pod.state not in ("Running", "Starting", "Pending", "Terminating", "ContainerCreating", "PodInitializing")


def _over(seconds: float | None, target: float) -> float:
    return 0.0 if seconds is None else -seconds / target


_SORT_KEYS: dict[str, Callable[[Service], float]] = {
    "name": lambda one: 0.0,
    "state": lambda one: _URGENCY[one.state] - bool(one.blocked) / 2,
    "queue": lambda one: -float(one.queue.waiting) if one.queue else 0.0,
    "kv": lambda one: -(one.observed.kv or 0.0) if one.observed else 0.0,
    "ttft": lambda one: _over(one.observed.ttft_p95, one.ttft_target) if one.observed else 0.0,
    "tpot": lambda one: _over(one.observed.tpot_p95, one.tpot_target) if one.observed else 0.0,
    "last": lambda one: -(one.decisions[-1].time.timestamp() if one.decisions and one.decisions[-1].time else 0.0),
}
