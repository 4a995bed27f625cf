"""The measurement: how fast the engine is, every fixed setting, then the operator's decisions from bad starts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from inflight_kubectl.load.client import Client
from inflight_settings.limits import Limits
from tools.bench.autopilot.engine import Admin, Engine, started
from tools.bench.autopilot.figures import Targets, goodput
from tools.bench.autopilot.kept import Kept, kept
from tools.bench.autopilot.load import found_load
from tools.bench.autopilot.options import Options
from tools.bench.autopilot.pilot import Change, Pilot
from tools.bench.autopilot.report import Fixed, PilotRun, Report, pair
from tools.bench.autopilot.traffic import Answer, Sender, Shape, Slice, trace_slice
from tools.load.trace_load import Job

CAPACITY = Limits(128, 4096)
"""Limits that engines are started with: the most that can be set."""

SHAPES = (
    Shape("short", prompt=1 / 16, output=1 / 8, first=100),
    Shape("long", prompt=1 / 4, output=1 / 8, first=100),
)
MOST_PROMPT = 1024
"""Most tokens of a prompt: the trace's longest one alone would take a second."""

STARTS = {"too few slots": Limits(2, 512), "too many slots": Limits(128, 512), "too large a budget": Limits(24, 4096)}

_PROBE = Limits(32, 256)
_PROBE_REQUESTS = 48
_PROBE_SECONDS = 300.0
"""Most seconds that a probe may take."""
_WARM_UP = 8
"""Requests that an engine serves before anything is measured."""
_FIRST_LOAD = 0.85
"""The first load that is tried, as a share of the rate at which requests are served that come all at once."""
_BEHIND = 0.05
"""Share of the requests by which a setting is behind the best one at a load, to be tried at no further one."""


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

    def conditions(self) -> dict[str, Any]:
        """Returns what results have in common that can be compared."""
        options = self.options
        names = ("engine", "window", "lead_time", "turns", "again", "threads", "seed")
        return {
            "ttft": options.targets.ttft,
            "tpot": options.targets.tpot,
            "settings": [pair(one) for one in options.settings],
            **{name: getattr(options, name) for name in names},
        }

    def slice(self, shape: Shape, requests: int) -> Slice:
        """Returns so many requests of the trace within one window."""
        return trace_slice(shape, requests, self.options.window, MOST_PROMPT)


async def measure(bench: Bench) -> Report:
    """Runs the wanted parts, without what was kept of earlier runs.

    Raises:
        RuntimeError: an engine did not start, or does not answer, or a part lacks what another one finds.
        ValueError: what was kept was measured under other conditions.
    """
    options = bench.options
    results = kept(options.keep, bench.conditions())
    if options.only != "autopilot":
        await _all_fixed(bench, results)
    elif not _complete(options, results):
        raise RuntimeError(f"{options.keep} lacks results of fixed settings: --only fixed first")
    slices = [bench.slice(shape, load) for shape, load in zip(SHAPES, results.loads, strict=True)]
    if options.only != "fixed":
        await _all_piloted(bench, results, slices)
    fixed = tuple(
        Fixed(limits, fmean(results.fixed[0, limits]), fmean(results.fixed[1, limits])) for limits in options.settings
    )
    return Report(options.targets, tuple(slices), fixed, tuple(results.runs), options.window)


def _complete(options: Options, results: Kept) -> bool:
    """Returns whether all fixed settings are measured, and the best ones again."""
    traffics = range(len(SHAPES))
    all_once = all((traffic, limits) in results.fixed for traffic in traffics for limits in options.settings)
    return all_once and all(_unconfirmed(results, traffic) is None for traffic in traffics)


def _unconfirmed(results: Kept, traffic: int) -> Limits | None:
    """Returns the best setting while it is measured over one window only: the largest of many is partly luck."""
    goodputs = {limits: values for (of, limits), values in results.fixed.items() if of == traffic}
    best = max(goodputs, key=lambda limits: fmean(goodputs[limits]))
    return best if len(goodputs[best]) == 1 else None


async def _all_fixed(bench: Bench, results: Kept) -> None:
    """Finds the loads and measures all fixed settings, on one engine."""
    options = bench.options
    if len(results.loads) == len(SHAPES) and _complete(options, results):
        return
    with _engine(bench, "fixed") as engine:
        async with Client(engine.url) as client:
            admin, sender = Admin(client.http, engine), Sender(client, options.seed)
            await _warm_up(sender)
            for traffic in range(len(results.loads), len(SHAPES)):
                results.loads.append(await _load(bench, admin, sender, SHAPES[traffic]))
                results.save()
            for traffic, (shape, load) in enumerate(zip(SHAPES, results.loads, strict=True)):
                part = bench.slice(shape, load)
                for limits in options.settings:
                    if (traffic, limits) not in results.fixed:
                        results.fixed[traffic, limits] = await _fixed(bench, admin, sender, part, limits, 1)
                        results.save()
                        _say_fixed(bench, results, traffic, limits)
                while (best := _unconfirmed(results, traffic)) is not None:
                    results.fixed[traffic, best] = await _fixed(bench, admin, sender, part, best, options.again)
                    results.save()
                    _say_fixed(bench, results, traffic, best)


def _say_fixed(bench: Bench, results: Kept, traffic: int, limits: Limits) -> None:
    values = results.fixed[traffic, limits]
    again = f", over {len(values)} windows" if len(values) > 1 else ""
    bench.say(f"  {SHAPES[traffic].name}, {pair(limits)}: {fmean(values):.2f} requests/s in target{again}")


async def _warm_up(sender: Sender) -> None:
    await sender.send([Job(0.0, 16, 4)] * _WARM_UP, time.monotonic(), patience=60)


async def _load(bench: Bench, admin: Admin, sender: Sender, shape: Shape) -> int:
    """Finds the load of a shape, in requests of one slice, by a setting for each number of sequences."""
    together = trace_slice(shape, _PROBE_REQUESTS, 1.0, MOST_PROMPT).jobs
    await admin.set_limits(_PROBE)
    took = []
    for _ in range(2):
        began = time.monotonic()
        await sender.send([job._replace(at=0.0) for job in together], began, _PROBE_SECONDS)
        took.append(time.monotonic() - began)
    first = len(together) / min(took) * _FIRST_LOAD * bench.options.window
    in_middle = sorted({one.max_num_batched_tokens for one in bench.options.settings})[1]
    tried = [one for one in bench.options.settings if one.max_num_batched_tokens == in_middle]

    async def share(requests: int) -> float:
        part = bench.slice(shape, requests)
        shares = {limits: (await _fixed(bench, admin, sender, part, limits, 1))[0] / part.rate for limits in tried}
        best = max(shares.values())
        tried[:] = [limits for limits in tried if shares[limits] >= best - _BEHIND]
        listed = ", ".join(f"{pair(limits)} {one:.0%}" for limits, one in shares.items())
        bench.say(f"  {part.rate:.1f} {shape.name} requests a second, in target: {listed}")
        return best

    found = await found_load(round(first), share)
    part = bench.slice(shape, found)
    prompt, output = part.mean_tokens
    bench.say(f"{shape.name} requests: {part.rate:.1f} a second of {prompt:.0f} + {output:.0f} tokens")
    return found


async def _fixed(
    bench: Bench, admin: Admin, sender: Sender, traffic: Slice, limits: Limits, windows: int
) -> list[float]:
    """Measures the goodput of a setting over slices in a row, after the end of another one."""
    lead_time, window = bench.options.lead_time, traffic.seconds
    await admin.idle()
    await admin.set_limits(limits)
    jobs = list(traffic.repeated(window - lead_time, (1 + windows) * window))
    answers = await sender.send(jobs, time.monotonic() - (window - lead_time), _patience(bench.targets, jobs))
    return [goodput(answers, bench.targets, n * window, (n + 1) * window) for n in range(1, 1 + windows)]


async def _all_piloted(bench: Bench, results: Kept, slices: Sequence[Slice]) -> None:
    """Runs the autopilot from all starts, each start as often as wanted; a shift follows the last one."""
    starts = list(STARTS.items())[: 1 if bench.options.quick else None]
    done = {(one.name, one.repeat) for one in results.runs}
    for repeat in range(bench.options.repeats):
        for number, (name, limits) in enumerate(starts):
            if (name, repeat) not in done:
                shift = slices[1] if number == len(starts) - 1 else None
                results.runs += await _piloted(bench, name, repeat, limits, slices[0], shift)
                results.save()


def _engine(bench: Bench, name: str) -> AbstractContextManager[Engine]:
    options = bench.options
    log = bench.logs / f"{name.replace(' ', '-')}.log"
    return started(options.engine, log, CAPACITY, options.targets.ttft, options.threads, bench.say)


async def _piloted(
    bench: Bench, name: str, repeat: int, start: Limits, short: Slice, shift: Slice | None
) -> list[PilotRun]:
    """The autopilot on a fresh engine that knows nothing yet, from `start`; then through a shift of the traffic."""
    options, targets = bench.options, bench.targets
    end = options.turns * short.seconds
    last = end + (options.turns * shift.seconds if shift is not None else 0.0)
    jobs = list(short.repeated(0.0, end))
    if shift is not None:
        jobs += [job._replace(at=job.at + end) for job in shift.repeated(0.0, last - end)]
    bench.say(f"autopilot, {name}, {repeat + 1} of {options.repeats}: {pair(start)}")
    with _engine(bench, f"{name} {repeat}") as engine:
        async with Client(engine.url) as client:
            admin, sender = Admin(client.http, engine), Sender(client, options.seed + repeat)
            await _warm_up(sender)
            pilot = Pilot(options.engine, admin, engine, targets, CAPACITY, await admin.set_limits(start), bench.say)
            began = time.monotonic()
            answers = await _beside(pilot, sender.send(jobs, began, _patience(targets, jobs)))
    changes = [replace(one, at=one.at - began) for one in pilot.changes]
    run = partial(_run, repeat=repeat, answers=answers, changes=changes)
    runs = [run(name, 0, start, begin=0.0, end=end)]
    if shift is not None:
        runs.append(run("short to long", 1, runs[0].at_end, begin=end, end=last))
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
    *,
    repeat: int,
    answers: Sequence[Answer],
    changes: Sequence[Change],
    begin: float,
    end: float,
) -> PilotRun:
    made = tuple(one for one in changes if begin <= one.at < end)
    due = tuple(one for one in answers if begin <= one.at < end)
    return PilotRun(name, repeat, traffic, start, made[-1].limits if made else start, due, made, begin, end)


def _patience(targets: Targets, jobs: Sequence[Job]) -> float:
    """Seconds after the last request in which any can still keep its targets."""
    return targets.ttft + targets.tpot * max(job.output_tokens for job in jobs)
