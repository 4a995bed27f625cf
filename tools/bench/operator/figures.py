"""Measured values, and their table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, nextafter

from tools.bench.operator.readings import Call, Reading, Values, longest_unrenewed, writes_by_kind
from tools.measure.processes import Memory
from tools.measure.report import percentile, table

GOAL_CORES = 1.0
GOAL_MEMORY = 300e6
GOAL_RENEWAL = nextafter(10.0, 0.0)
"""Most seconds without a renewal: a leader ends after `inflight_operator.leader.RENEW_DEADLINE_SECONDS`."""
GOAL_INTERVALS = 2
"""Scrape intervals within which the p99 of replicas is written after a jump."""
GOAL_TAKEOVER = 10.0
"""Seconds from leading to the last write of replicas for queues that jumped when the former leader was killed."""

LEASE_WRITES = ("create leases", "update leases", "patch leases")


@dataclass(frozen=True, slots=True)
class Delays:
    """Seconds from a queue's jump to the write of replicas.

    Attributes:
        jumps: queues that jumped.
        missed: of them, those whose replicas were not written in time to be seen.
    """

    jumps: int
    missed: int
    p50: float | None
    p99: float | None
    longest: float | None

    @staticmethod
    def of(seconds: Sequence[float | None]) -> Delays:
        """Summarizes delays. `seconds` has a None for each missed one."""
        seen = [one for one in seconds if one is not None]
        return Delays(
            len(seconds),
            len(seconds) - len(seen),
            percentile(seen, 0.5) if seen else None,
            percentile(seen, 0.99) if seen else None,
            max(seen, default=None),
        )


@dataclass(frozen=True, slots=True)
class PhaseFigures:
    """Figures of one phase. Rates are per second.

    Attributes:
        cores: CPU seconds a second, by process.
        machine_cores: CPU seconds a second of all processes of the machine: where it nears the number of cores, delays
            are the machine's.
        rounds, failed_rounds, mean_round: rounds of the operator by result, and mean seconds of one.
        pages: metrics pages that the fake engines answered: scrapes that were of use, counted from outside.
        scrapes: scrapes by result, as the operator counts them; empty where it does not.
        writes: API writes of the operator, by verb and resource.
        unrenewed: longest time in seconds between two renewals of the Lease; None: not seen.
        delays: delays after a queue jumped or a service was created; None: none was.
    """

    name: str
    seconds: float
    cores: Mapping[str, float]
    machine_cores: float
    memory: Memory
    rounds: float
    failed_rounds: float
    mean_round: float | None
    pages: float
    scrapes: Mapping[str, float]
    writes: Mapping[str, float]
    unrenewed: float | None
    delays: Delays | None

    @property
    def writes_but_leases(self) -> float:
        return sum(rate for call, rate in self.writes.items() if call not in LEASE_WRITES)


def phase_figures(
    name: str,
    before: Reading,
    after: Reading,
    memory: Memory,
    calls: Sequence[Call],
    delays: Delays | None,
) -> PhaseFigures:
    """The differences between two readings as rates. `calls` are the operator's in between."""
    seconds = after.time - before.time

    def rate(metric: str, label: str = "") -> float:
        return _growth(before.values, after.values, metric, label) / seconds

    labels = sorted(label for metric, label in after.values if metric == "inflight_operator_scrapes_total")
    rounds = rate("inflight_operator_reconcile_total", "done"), rate("inflight_operator_reconcile_total", "failed")
    busy = rate("inflight_operator_reconcile_duration_seconds_sum")
    return PhaseFigures(
        name=name,
        seconds=seconds,
        cores={process: (cpu - before.cpu[process]) / seconds for process, cpu in after.cpu.items()},
        machine_cores=(after.machine - before.machine) / seconds,
        memory=memory,
        rounds=rounds[0],
        failed_rounds=rounds[1],
        mean_round=busy / sum(rounds) if sum(rounds) else None,
        pages=(after.pages - before.pages) / seconds,
        scrapes={label: rate("inflight_operator_scrapes_total", label) for label in labels},
        writes={call: count / seconds for call, count in sorted(writes_by_kind(calls).items())},
        unrenewed=longest_unrenewed(calls),
        delays=delays,
    )


def _growth(before: Values, after: Values, metric: str, label: str) -> float:
    return after.get((metric, label), 0.0) - before.get((metric, label), 0.0)


@dataclass(frozen=True, slots=True)
class Failover:
    """Seconds after the leader was killed until the other operator did a thing; None: not seen in time.

    Attributes:
        leads: the operator held the Lease.
        first_scrape: it had scraped a pod, after it had read what changed while it stood by.
        all_scrapes: it had done as many scrapes as there are pods.
        first_round: it had finished a round.
        all_rounds: it had finished as many rounds as there are services.
        first_write: it wrote the replicas of a service whose queue jumped at the kill.
        last_write: of the last of these services.
    """

    leads: float | None
    first_scrape: float | None
    all_scrapes: float | None
    first_round: float | None
    all_rounds: float | None
    first_write: float | None
    last_write: float | None

    @property
    def finding(self) -> Finding:
        """The goal; missed as well where the operator was not seen to lead or to write the last replicas."""
        seconds = inf if self.leads is None or self.last_write is None else self.last_write - self.leads
        return Finding("leader", "seconds from leading to the last replicas", seconds, most=GOAL_TAKEOVER)


@dataclass(frozen=True, slots=True)
class Finding:
    """A figure that a phase shows.

    Attributes:
        phase: name of the phase.
        what: of what, with its unit.
        most, least: bounds that it keeps; None: no bound.
    """

    phase: str
    what: str
    value: float
    most: float | None = None
    least: float | None = None

    @property
    def met(self) -> bool:
        return (self.most is None or self.value <= self.most) and (self.least is None or self.value >= self.least)

    @property
    def goal(self) -> str:
        if self.most is not None and self.most == self.least:
            return f"{self.most:g}"
        bounds = (("at least", self.least), ("at most", self.most))
        return " and ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)


@dataclass(frozen=True, slots=True)
class SetUp:
    """The way to a fleet that is ready, in seconds since the first service was created.

    Attributes:
        created: all services are stored.
        pods_ready: all their pods are Ready.
        settled: the operator writes nothing but its Lease any more; None where it went on.
        services_ready: services with the condition Ready when the wait was over.
        restarts: of an operator that ended.
    """

    created: float
    pods_ready: float
    settled: float | None
    services_ready: int
    restarts: int


@dataclass(frozen=True, slots=True)
class Report:
    """All figures of one run; `failure` says why some are missing, and is empty where none is."""

    machine: str
    services: int
    pods: int
    interval: float
    set_up: SetUp
    phases: Sequence[PhaseFigures]
    failover: Failover | None
    findings: Sequence[Finding] = ()
    failure: str = ""

    @property
    def missed(self) -> list[str]:
        """Names of the table's goals that a phase missed, and of findings that did not keep their bounds."""
        goals = [
            Finding(phase.name, title, value, most=goal.most)
            for title, goal, _ in _rows(self)
            if isinstance(goal, _Goal)
            for phase in self.phases
            if (value := goal.value(phase)) is not None
        ]
        return [f"{one.phase}: {one.what}" for one in (*goals, *self.findings) if not one.met]


def lines(report: Report) -> Iterator[str]:
    """The report for a person."""
    set_up = report.set_up
    yield report.machine
    yield f"{report.services} services, {report.pods} pods, a scrape of each every {report.interval:g} s"
    settled = "never" if set_up.settled is None else f"after {set_up.settled:.0f} s"
    yield (
        f"Created in {set_up.created:.0f} s, pods ready after {set_up.pods_ready:.0f} s, operator quiet {settled}, "
        f"{set_up.services_ready} services Ready, operator restarted {set_up.restarts} times"
    )
    if report.phases:
        yield ""
        yield from table([[title, str(goal), *map(show, report.phases)] for title, goal, show in _rows(report)], "<>")
    if report.failover is not None:
        yield ""
        yield from _failover_lines(report.failover)
    if report.findings:
        yield ""
        rows = [
            [one.phase, one.what, f"{one.value:.4g}", one.goal, "" if one.met else "MISSED"] for one in report.findings
        ]
        yield from table([["", "", "", "goal", ""], *rows], "<<><")


@dataclass(frozen=True, slots=True)
class _Goal:
    """The most that `value` is in each phase; it is None where the phase has no such figure."""

    most: float
    value: Callable[[PhaseFigures], float | None]

    def __str__(self) -> str:
        return f"{self.most:g}"


def _rows(report: Report) -> list[tuple[str, str | _Goal, Callable[[PhaseFigures], str]]]:
    """Rows of the table of phases: title, goal or what is expected, and the text of a phase's cell."""
    phases = report.phases
    rows: list[tuple[str, str | _Goal, Callable[[PhaseFigures], str]]] = [
        ("", "goal", lambda one: one.name),
        (
            "operator, CPU cores",
            _Goal(GOAL_CORES, lambda one: one.cores["operator"]),
            lambda one: f"{one.cores['operator']:.2f}",
        ),
        ("operator, memory now / peak, MB", _Goal(GOAL_MEMORY / 1e6, lambda one: one.memory.peak / 1e6), _memory),
        ("rounds / s", "", lambda one: f"{one.rounds:.1f}"),
        ("failed rounds / s", "0", lambda one: f"{one.failed_rounds:.1f}"),
        ("a round, ms", "", lambda one: _number(one.mean_round, 1000)),
        ("metrics pages answered / s", f"{report.pods / report.interval:.0f}", lambda one: f"{one.pages:.0f}"),
        ("jump to replicas, p50, s", "", lambda one: _delay(one, "p50")),
        (
            "jump to replicas, p99, s",
            _Goal(GOAL_INTERVALS * report.interval, lambda one: one.delays.p99 if one.delays else None),
            lambda one: _delay(one, "p99"),
        ),
        ("jump to replicas, longest, s", "", lambda one: _delay(one, "longest")),
        ("jumps / without a write", _Goal(0, lambda one: one.delays.missed if one.delays else None), _jumps),
        (
            "longest without renewal of the Lease, s",
            # With fewer than two renewals, the phase may have had none.
            _Goal(GOAL_RENEWAL, lambda one: one.seconds if one.unrenewed is None else one.unrenewed),
            lambda one: _number(one.unrenewed),
        ),
        ("API writes / s, Leases left out", "0 at rest", lambda one: f"{one.writes_but_leases:.2f}"),
    ]
    for result in sorted({result for one in phases for result in one.scrapes}):
        rows.append((f"scrapes / s: {result}", "", lambda one, r=result: f"{one.scrapes.get(r, 0):.1f}"))  # type: ignore[misc]
    for call in sorted({call for one in phases for call in one.writes}):
        rows.append((f"  {call} / s", "", lambda one, c=call: f"{one.writes.get(c, 0):.2f}"))  # type: ignore[misc]
    for process in dict.fromkeys(name for one in phases for name in one.cores if name != "operator"):
        rows.append((f"{process}, CPU cores", "", lambda one, p=process: f"{one.cores[p]:.2f}"))  # type: ignore[misc]
    rows.append(("whole machine, CPU cores", "", lambda one: f"{one.machine_cores:.2f}"))
    return rows


def _memory(figures: PhaseFigures) -> str:
    return f"{figures.memory.now / 1e6:.0f} / {figures.memory.peak / 1e6:.0f}"


def _number(value: float | None, factor: float = 1.0) -> str:
    return "-" if value is None else f"{value * factor:.1f}"


def _delay(figures: PhaseFigures, name: str) -> str:
    return "-" if figures.delays is None else _number(getattr(figures.delays, name))


def _jumps(figures: PhaseFigures) -> str:
    return "-" if figures.delays is None else f"{figures.delays.jumps} / {figures.delays.missed}"


def _failover_lines(failover: Failover) -> Iterator[str]:
    yield "Leader killed; seconds until the operator that stands by"
    for event, seconds in (
        ("leads", failover.leads),
        ("has scraped a pod", failover.first_scrape),
        ("has done as many scrapes as pods", failover.all_scrapes),
        ("has finished a round", failover.first_round),
        ("has finished as many rounds as services", failover.all_rounds),
        ("has written the first replicas", failover.first_write),
        ("has written the last replicas", failover.last_write),
    ):
        yield f"  {event:40s} {_number(seconds):>8s}"
