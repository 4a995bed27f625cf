"""The measurement: how fast the engine is, every fixed setting, then the operator's decisions from bad starts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inflight_kubectl.load.client import Client
from inflight_settings.limits import Limits
from tools.bench.autopilot.engine import Admin, started
from tools.bench.autopilot.figures import Targets, goodput
from tools.bench.autopilot.options import Options
from tools.bench.autopilot.pilot import Change, Pilot
from tools.bench.autopilot.report import Fixed, PilotRun, Report, pair
from tools.bench.autopilot.traffic import Answer, Sender, Shape, Slice, trace_slice
from tools.load.trace_load import Job

CAPACITY = Limits(128, 4096)
"""Limits that engines are started with: the most that can be set."""

SHORT = Shape("short", prompt=1 / 16, output=1 / 8, first=100)
LONG = Shape("long", prompt=1 / 4, output=1 / 8, first=100)
MOST_PROMPT = 1024
"""Most tokens of a prompt: the trace's longest one alone would take a second."""

STARTS = {"too few slots": Limits(2, 512), "too many slots": Limits(128, 512), "too large a budget": Limits(24, 4096)}

_PROBE = Limits(32, 256)
_PROBE_REQUESTS = 48
_PROBE_SECONDS = 300.0
"""Most seconds that a probe may take."""
_WARM_UP = 8
"""Requests that an engine serves before anything is measured."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Parameters of all parts.

    Attributes:
        say: prints progress.
        logs: folder of the engines' logs.
    """

    options: Options
    say: Callable[[str], None]
    logs: Path

    @property
    def targets(self) -> Targets:
        return self.options.targets


async def measure(bench: Bench) -> Report:
    """Runs all parts.

    Raises:
        RuntimeError: an engine did not start, or does not answer.
    """
    options = bench.options
    fixed: list[Fixed] = []
    with started(bench.logs / "fixed.log", CAPACITY, options.targets.ttft, options.threads) as engine:
        async with Client(engine.url) as client:
            admin, sender = Admin(client.http, engine), Sender(client, options.seed)
            slices = [await _sized(bench, admin, sender, shape) for shape in (SHORT, LONG)]
            for limits in options.settings:
                fixed.append(Fixed(limits, *[await _fixed(bench, admin, sender, each, limits) for each in slices]))
                bench.say(f"  {pair(limits)}: {fixed[-1].short:.2f} and {fixed[-1].long:.2f} requests/s in target")
            fixed = await _again(bench, admin, sender, slices, fixed)
    runs = []
    starts = list(STARTS.items())[: 1 if options.quick else None]
    for number, (name, limits) in enumerate(starts):
        shift = slices[1] if number == len(starts) - 1 else None
        runs += await _piloted(bench, name, limits, slices[0], shift)
    return Report(options.targets, tuple(slices), tuple(fixed), tuple(runs), options.window)


async def _sized(bench: Bench, admin: Admin, sender: Sender, shape: Shape) -> Slice:
    """Returns a slice whose rate is the wanted share of the rate at which the engine serves requests all at once."""
    probe = trace_slice(shape, _PROBE_REQUESTS, 1.0, MOST_PROMPT)
    await admin.set_limits(_PROBE)
    took = []
    for jobs in (probe.jobs[:_WARM_UP], probe.jobs, probe.jobs):
        began = time.monotonic()
        await sender.send([job._replace(at=0.0) for job in jobs], began, _PROBE_SECONDS)
        took.append(time.monotonic() - began)
    rate = len(probe.jobs) / min(took[1:]) * bench.options.load
    found = trace_slice(shape, max(8, round(rate * bench.options.window)), bench.options.window, MOST_PROMPT)
    prompt, output = found.mean_tokens
    bench.say(f"{shape.name} requests: {found.rate:.1f} a second of {prompt:.0f} + {output:.0f} tokens")
    return found


async def _fixed(bench: Bench, admin: Admin, sender: Sender, traffic: Slice, limits: Limits) -> float:
    """Measures the goodput of a setting over a slice, after the end of another one."""
    lead_time, window = bench.options.lead_time, traffic.seconds
    await admin.idle()
    await admin.set_limits(limits)
    jobs = list(traffic.repeated(window - lead_time, 2 * window))
    answers = await sender.send(jobs, time.monotonic() - (window - lead_time), _patience(bench.targets, jobs))
    return goodput(answers, bench.targets, window, 2 * window)


async def _again(
    bench: Bench, admin: Admin, sender: Sender, slices: Sequence[Slice], fixed: Sequence[Fixed]
) -> list[Fixed]:
    """Measures the best settings of each traffic again, for their means: the largest of many figures is partly luck."""
    found = list(fixed)
    for number, traffic in enumerate(slices):
        best = sorted(range(len(found)), key=lambda index: found[index].goodputs[number])[-bench.options.finalists :]
        for index in best:
            one = found[index]
            mean = (one.goodputs[number] + await _fixed(bench, admin, sender, traffic, one.limits)) / 2
            found[index] = replace(one, short=mean) if number == 0 else replace(one, long=mean)
            bench.say(f"  {pair(one.limits)} again: {mean:.2f} {('short', 'long')[number]} requests/s in target")
    return found


async def _piloted(bench: Bench, name: str, start: Limits, short: Slice, shift: Slice | None) -> list[PilotRun]:
    """The autopilot on a fresh engine that knows nothing yet, from `start`; then through a shift of the traffic."""
    options, targets = bench.options, bench.targets
    end = options.turns * short.seconds
    last = end + (options.turns * shift.seconds if shift is not None else 0.0)
    jobs = list(short.repeated(0.0, end))
    if shift is not None:
        jobs += [job._replace(at=job.at + end) for job in shift.repeated(0.0, last - end)]
    bench.say(f"autopilot, {name}: {pair(start)}")
    with started(bench.logs / f"{name.replace(' ', '-')}.log", CAPACITY, targets.ttft, options.threads) as engine:
        async with Client(engine.url) as client:
            admin, sender = Admin(client.http, engine), Sender(client, options.seed)
            await sender.send([Job(0.0, 16, 4)] * _WARM_UP, time.monotonic(), patience=60)
            pilot = Pilot(admin, engine, targets, CAPACITY, await admin.set_limits(start), bench.say)
            began = time.monotonic()
            answers = await _beside(pilot, sender.send(jobs, began, _patience(targets, jobs)))
    changes = [replace(one, at=one.at - began) for one in pilot.changes]
    runs = [_run(name, 0, start, answers, changes, 0.0, end)]
    if shift is not None:
        runs.append(_run("short to long", 1, runs[0].at_end, answers, changes, end, last))
    return runs


async def _beside(pilot: Pilot, sending: Coroutine[Any, Any, list[Answer]]) -> list[Answer]:
    """Sends requests beside the pilot's rounds; returns the answers and raises the pilot's errors."""
    requests, rounds = asyncio.create_task(sending), asyncio.create_task(pilot.run())
    try:
        await asyncio.wait((requests, rounds), return_when=asyncio.FIRST_COMPLETED)
        if rounds.done():
            await rounds
        return await requests
    finally:
        for task in (requests, rounds):
            task.cancel()
        await asyncio.gather(requests, rounds, return_exceptions=True)


def _run(
    name: str,
    traffic: int,
    start: Limits,
    answers: Sequence[Answer],
    changes: Sequence[Change],
    begin: float,
    end: float,
) -> PilotRun:
    made = [one for one in changes if begin <= one.at < end]
    return PilotRun(name, traffic, start, made[-1].limits if made else start, tuple(answers), tuple(made), begin, end)


def _patience(targets: Targets, jobs: Sequence[Job]) -> float:
    """Seconds after the last request in which any can still keep its targets."""
    return targets.ttft + targets.tpot * max(job.output_tokens for job in jobs)
