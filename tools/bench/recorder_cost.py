"""Overhead of recording in the engine process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import numpy as np

from inflight_engine.recording.recorder import Recorder
from inflight_engine.request import Request, SamplingParams
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.scheduler import Scheduler
from tools.load.trace_load import Job


def recorder_cost(jobs: Sequence[Job], config: SchedulerConfig, step_seconds: float, file: Path) -> tuple[float, int]:
    """Run the jobs through the scheduler, with steps of `step_seconds` on a virtual clock and no model, and record it.

    Returns:
        Seconds of real time spent in the recorder, compression and writing included; and the number of steps.
    """
    random = np.random.default_rng(0)
    scheduler = Scheduler(config)
    recorder = Recorder.to_file(str(file), config, scheduler.is_cached)
    spent, now, steps = 0.0, 0.0, 0
    waiting = list(enumerate(jobs))
    while waiting or scheduler.has_work:
        while waiting and waiting[0][1].at <= now:
            number, job = waiting.pop(0)
            prompt = random.integers(0, 1 << 30, job.prompt_tokens, np.int32)
            request = Request(number, prompt, SamplingParams(max_tokens=job.output_tokens), now)
            scheduler.add(request)
            started = perf_counter()
            recorder.added(request)
            spent += perf_counter() - started
        plan = scheduler.schedule(now)
        if scheduler.last_change == now:
            started = perf_counter()
            recorder.time_passed(steps, now)
            spent += perf_counter() - started
        if plan is None:
            now = waiting[0][1].at
            continue
        ended = scheduler.update(plan, random.integers(0, 1 << 30, len(plan.sampled_slots), np.int32))
        started = perf_counter()
        recorder.stepped(plan, ended, step_seconds)
        spent += perf_counter() - started
        now += step_seconds
        steps += 1
    started = perf_counter()
    recorder.close()
    return spent + perf_counter() - started, steps
