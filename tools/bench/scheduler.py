"""Cost of one scheduler iteration by the number of running requests, without model, processes and sockets."""

from __future__ import annotations

import argparse
import gc
import json
import platform
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from inflight_settings.flag_types import number
from tools.bench.scheduler_load import BLOCK_SIZE, MAX_MODEL_LEN, STOP_TOKEN_IDS, Load, Nanoseconds, blocked, loaded
from tools.measure.report import cpu_model

GOAL_MICROSECONDS, GOAL_MICROSECONDS_PER_1024 = 10.0, 15.0
"""A whole step may take the first, and with many requests the second for each 1,024 of them."""
PROMPT_TOKENS = 256
OUTPUT_TOKENS = 200
"""Tokens generated before the steps with a change are measured: the length of a chat answer."""
CHANGES_TO_A_LOAD = 10
"""Changes after which a new load is made, so that requests that finish have generated few more tokens."""
SETTLE_STEPS = 3
WARM_UP_STEPS = 100
MAX_STEPS = 6000
"""Longest output of a request, which none reaches: requests end when the benchmark ends them."""
MAX_STEPS_TO_PREEMPT = 1000


@dataclass(frozen=True, slots=True)
class Spread:
    """Microseconds."""

    median: float
    p95: float


@dataclass(frozen=True, slots=True)
class Row:
    """Times at one size, in microseconds.

    Attributes:
        schedule, update, metrics: parts of a steady decode step; `metrics` reads what the engine reports of each step.
        step: sum of the three.
        blocked: the same under `fair`, where the request that is next does not fit and more wait behind it.
        grown_tables: block tables that got a block, mean of a steady step.
        arrival, finish, preemption: median of the two steps that each touches (the second sees the changed batch), all
            their work included; `arrival` with `add`. None: not measured at this size.
    """

    num_running: int
    schedule: Spread
    update: Spread
    metrics: Spread
    step: Spread
    blocked: Spread
    grown_tables: float
    arrival: float
    finish: float
    preemption: float | None

    @property
    def goal_us(self) -> float:
        return max(GOAL_MICROSECONDS, GOAL_MICROSECONDS_PER_1024 * self.num_running / 1024)

    @property
    def meets_goal(self) -> bool:
        return self.step.median <= self.goal_us


def timer_cost_ns() -> int:
    """Returns the time between two consecutive readings of the clock, in ns."""
    differences = np.diff([time.perf_counter_ns() for _ in range(20_000)])
    return int(np.median(differences))


def blocks_for(num_running: int, num_steps: int) -> int:
    """Returns the blocks for the prompts, that many steps, and a spare prompt for each request."""
    return num_running * -(-(2 * (PROMPT_TOKENS + BLOCK_SIZE) + num_steps) // BLOCK_SIZE)


def measure_steady(load: Load, num_steps: int) -> tuple[Nanoseconds, float]:
    """Times [num_steps, 3] of steady decode, and how many tables grew in a step."""
    load.steps(WARM_UP_STEPS)
    plans, times = load.steps(num_steps)
    grown = [0 if plan.growth is None else len(plan.growth.slots) for plan in plans]
    return times, sum(grown) / num_steps


def measure_changes(num_running: int, num_samples: int, timer_cost: int) -> tuple[list[int], list[int]]:
    """Times in ns of single finishes, each followed by an arrival in the place that became free."""
    num_blocks = blocks_for(num_running, OUTPUT_TOKENS + CHANGES_TO_A_LOAD * (4 + 2 * SETTLE_STEPS))
    random = np.random.default_rng(1)
    finishes: list[int] = []
    arrivals: list[int] = []
    while len(finishes) < num_samples:
        load = loaded(num_running, num_blocks, PROMPT_TOKENS, timer_cost, warm=True)
        load.steps(OUTPUT_TOKENS)
        for place in random.choice(num_running, min(CHANGES_TO_A_LOAD, num_samples - len(finishes)), replace=False):
            _, ending = load.step(stopping=int(place))
            _, after = load.step()
            finishes.append(sum(ending) + sum(after))
            load.steps(SETTLE_STEPS)
            adding = load.add(PROMPT_TOKENS)
            _, starting = load.step()
            _, after = load.step()
            arrivals.append(adding + sum(starting) + sum(after))
            load.steps(SETTLE_STEPS)
    return finishes, arrivals


def measure_preemptions(num_running: int, num_samples: int, timer_cost: int) -> list[int]:
    """Times in ns of single preemptions; empty where the tables that this takes would be longer than the context.

    Preempted requests are not replaced, so a run ends when a tenth of the requests is gone.
    """
    # A victim's blocks are three times what grows in a step, so that it is one victim and the next step needs none.
    prompt_tokens = max(PROMPT_TOKENS, 3 * num_running)
    if prompt_tokens + MAX_STEPS_TO_PREEMPT > MAX_MODEL_LEN:
        return []
    num_blocks = num_running * (prompt_tokens // BLOCK_SIZE + 2)
    times: list[int] = []
    while len(times) < num_samples:
        load = loaded(num_running, num_blocks, prompt_tokens, timer_cost, warm=False)
        while load.scheduler.num_running > num_running * 9 // 10 and len(times) < num_samples:
            plan, preempting = load.step()
            if len(plan.preemptions) != 1:
                continue
            plan, after = load.step()
            if not plan.preemptions:
                times.append(sum(preempting) + sum(after))
    return times


def measure(num_running: int, num_steps: int, num_samples: int, timer_cost: int) -> Row:
    num_blocks = blocks_for(num_running, WARM_UP_STEPS + num_steps)
    times, grown_tables = measure_steady(
        loaded(num_running, num_blocks, PROMPT_TOKENS, timer_cost, warm=True), num_steps
    )
    blocked_times, _ = measure_steady(blocked(num_running, num_blocks, PROMPT_TOKENS, timer_cost), num_steps)
    finishes, arrivals = measure_changes(num_running, num_samples, timer_cost)
    preemptions = measure_preemptions(num_running, num_samples, timer_cost)
    schedule, update, metrics = (spread(times[:, part]) for part in range(3))
    return Row(
        num_running=num_running,
        schedule=schedule,
        update=update,
        metrics=metrics,
        step=spread(times.sum(axis=1)),
        blocked=spread(blocked_times.sum(axis=1)),
        grown_tables=grown_tables,
        arrival=spread(arrivals).median,
        finish=spread(finishes).median,
        preemption=spread(preemptions).median if preemptions else None,
    )


def spread(nanoseconds: Nanoseconds | Sequence[int]) -> Spread:
    median, p95 = np.percentile(nanoseconds, [50, 95]) / 1000
    return Spread(float(median), float(p95))


def lines(facts: dict[str, str | int], rows: Sequence[Row], num_steps: int, num_samples: int) -> Iterator[str]:
    """The report for a person."""
    yield f"{facts['cpu']}, Python {facts['python']}, numpy {facts['numpy']}, garbage collector {facts['gc']}"
    yield f"Microseconds; {facts['timer_cost_ns']} ns of the timer's own cost taken off each reading."
    yield ""
    titles = " | ".join(f"{title:^13s}" for title in ("schedule", "update", "metrics", "whole step", "one waits"))
    yield f"{'':7s} | {titles} | tables |       | two steps around one"
    yield (f"running | {' | '.join(5 * [' median   p95'])} |  grown |  goal | arrival finish preemption")
    for row in rows:
        parts = (row.schedule, row.update, row.metrics, row.step, row.blocked)
        columns = " | ".join(f"{part.median:7.2f} {part.p95:5.1f}" for part in parts)
        preemption = "-" if row.preemption is None else f"{row.preemption:.0f}"
        yield (
            f"{row.num_running:7d} | {columns} | {row.grown_tables:6.1f} | {'yes' if row.meets_goal else 'no':>5s} | "
            f"{row.arrival:7.0f} {row.finish:6.0f} {preemption:>10s}"
        )
    yield ""
    yield (
        f"Goal: a whole step in {GOAL_MICROSECONDS:.0f} us (median), with many requests in "
        f"{GOAL_MICROSECONDS_PER_1024:.0f} us for each 1,024."
    )
    notes = (
        f"Steady: {num_steps} decode steps after {WARM_UP_STEPS} to warm up, blocks of {BLOCK_SIZE} tokens, each "
        f"request with {len(STOP_TOKEN_IDS)} stop token ids, prefix caching on and every free block full of cached "
        "content. Metrics: reading all that the engine reports of a step. One waits: the whole step under the policy "
        "fair where the next request does not fit, others have passed it, and more wait behind it.",
        f"Changes: medians of {num_samples}, each of the two steps it touches, steady work included. Arrival: `add` of "
        f"{PROMPT_TOKENS} prompt tokens, their hashes included. Finish: on a stop token after {OUTPUT_TOKENS} to "
        f"{OUTPUT_TOKENS + CHANGES_TO_A_LOAD * (4 + 2 * SETTLE_STEPS)} tokens. Preemption: to recompute, of a request "
        "with three times the blocks that one step needs (- where that is longer than the context).",
        "No model runs between the steps, so the processor's caches are warm.",
    )
    for note in notes:
        yield textwrap.fill(note, 110)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.scheduler",
        description=__doc__,
        epilog="example: python -m tools.bench.scheduler --sizes 64 256 --steps 1000 --json",
    )
    parser.add_argument(
        "--sizes", type=number(int, 16, 65536), nargs="+", default=[64, 256, 1024, 4096], metavar="N",
        help="running requests, one or more numbers (default: 64 256 1024 4096)",
    )  # fmt: skip
    parser.add_argument(
        "--steps", type=number(int, 100, MAX_STEPS), default=2000, metavar="N",
        help="steady steps to time at each size (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--samples", type=number(int, 5, 300), default=50, metavar="N",
        help="arrivals, finishes and preemptions to time at each size (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the table")
    arguments = parser.parse_args()
    timer_cost = timer_cost_ns()
    facts = {
        "cpu": cpu_model(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "gc": "on" if gc.isenabled() else "off",
        "timer_cost_ns": timer_cost,
    }
    rows = [measure(size, arguments.steps, arguments.samples, timer_cost) for size in arguments.sizes]
    if arguments.json:
        sizes = [{**asdict(row), "goal_us": row.goal_us, "meets_goal": row.meets_goal} for row in rows]
        print(json.dumps({**facts, "sizes": sizes}, indent=2))
    else:
        print("\n".join(lines(facts, rows, arguments.steps, arguments.samples)))


if __name__ == "__main__":
    main()
