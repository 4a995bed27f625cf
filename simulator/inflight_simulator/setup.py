"""Configuration of a simulation, from parsed flags and the requests."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inflight_engine.scheduling.config import SchedulerConfig
from inflight_settings.flags import chosen
from inflight_settings.limits import Limits
from inflight_settings.scheduling import DEFAULT_CLASS, SchedulingSettings, ServiceClass
from inflight_simulator.arrivals import Arrival, Scaling, blocks_of, scaled
from inflight_simulator.continuous import simulate_continuous
from inflight_simulator.cost import LLAMA_8B_H100, Cost, UnitCost, check_cost, load_rates, read_cost
from inflight_simulator.errors import InputError
from inflight_simulator.flags import COST_FLAGS, SETTINGS, attribute
from inflight_simulator.outcome import Run
from inflight_simulator.passes import mixed, separate
from inflight_simulator.static import simulate_static
from inflight_simulator.trace_files import MOST_SECONDS, MOST_TOKENS, read_arrivals


@dataclass(frozen=True, slots=True)
class Setup:
    """Configuration of a simulation, for any kind of batching. `arrivals`: in order of arrival, at least one."""

    arrivals: Sequence[Arrival]
    scheduler: SchedulerConfig
    cost: Cost

    @property
    def unit_cost(self) -> bool:
        return isinstance(self.cost, UnitCost)

    def static(self) -> Run:
        return simulate_static(self.arrivals, self.scheduler, self.cost)

    def continuous(self) -> Run:
        # Free prefill is not bound by a budget either: each prompt is whole, in its first step.
        config = self._without_budget() if self.unit_cost else self.scheduler
        return simulate_continuous(self.arrivals, config, self.cost, mixed, load_rates(self.cost))

    def continuous_without_chunks(self) -> Run:
        passes = separate(self.scheduler.capacity.max_num_batched_tokens)
        return simulate_continuous(self.arrivals, self._without_budget(), self.cost, passes, load_rates(self.cost))

    def _without_budget(self) -> SchedulerConfig:
        """Token budget that no step can use up, so that no prompt is cut."""
        max_num_seqs = self.scheduler.capacity.max_num_seqs
        return replace(self.scheduler, capacity=Limits(max_num_seqs, max_num_seqs * self.scheduler.max_model_len))


def setup(flags: argparse.Namespace) -> Setup:
    """Read ARRIVALS and resolve unset flags.

    Raises:
        InputError: ARRIVALS or the file of `--cost` cannot be used, or flags contradict each other or ARRIVALS.
    """
    scaling = Scaling(flags.duration, flags.every, flags.scale_prompt, flags.scale_output, flags.speed)
    arrivals = scaled(read_arrivals(flags.arrivals), scaling)
    _check_scaled(arrivals)

    given = {name: value for name, value in vars(flags).items() if value is not None}
    sizes = {name: given.get(name, each.default) for name, each in SETTINGS.items()}
    scheduler = SchedulerConfig(
        capacity=Limits(sizes["max_num_seqs"], sizes["max_num_batched_tokens"]),
        num_blocks=sizes["num_kv_blocks"] or _ample_blocks(arrivals, sizes),
        block_size=sizes["block_size"],
        max_model_len=sizes["max_model_len"] or max(arrival.total_tokens for arrival in arrivals),
        num_host_blocks=flags.swap_space_blocks or 0,
        **chosen(SchedulingSettings, given | {"classes": _classes(arrivals, dict(flags.class_weight or ()))}),
    )
    return Setup(arrivals, scheduler, cost_model(flags))


def _ample_blocks(arrivals: Sequence[Arrival], sizes: Mapping[str, Any]) -> int:
    """KV blocks that suffice for these requests without waiting: the largest at once, and the headroom above them."""
    largest = sorted((blocks_of(arrival.total_tokens, sizes["block_size"]) for arrival in arrivals), reverse=True)
    # One for the rounding of the headroom's share.
    headroom: float = sizes["kv_headroom"]
    return math.ceil(sum(largest[: sizes["max_num_seqs"]]) / (1 - headroom)) + 1


def _check_scaled(arrivals: Sequence[Arrival]) -> None:
    """Raises InputError: scaling made of them what no simulation ends with."""
    for flag, most in (
        ("--scale-prompt", max(arrival.prompt_tokens for arrival in arrivals)),
        ("--scale-output", max(arrival.output_tokens for arrival in arrivals)),
    ):
        if most > MOST_TOKENS:
            raise InputError(f"{flag} makes a request of {most} tokens; at most {MOST_TOKENS} can be simulated")
    if arrivals[-1].arrival_s > MOST_SECONDS:
        raise InputError(
            f"--speed makes the last request come at {arrivals[-1].arrival_s:g} s; at most {MOST_SECONDS:g}"
        )


def cost_model(flags: argparse.Namespace) -> Cost:
    """
    Raises:
        InputError: the file is no cost model, or the constants make none or contradict `--cost unit`.
    """
    given = {
        field: getattr(flags, attribute(flag)) * unit
        for field, (flag, unit, _) in COST_FLAGS.items()
        if getattr(flags, attribute(flag)) is not None
    }
    if flags.cost == "unit":
        if given:
            raise InputError(f"with --cost unit a step takes 1 s; leave out {COST_FLAGS[next(iter(given))][0]}")
        return UnitCost()
    model = read_cost(Path(flags.cost)) if flags.cost else LLAMA_8B_H100
    model = replace(model, **given)
    check_cost(model)
    return model


def _classes(arrivals: Sequence[Arrival], weights: dict[str, float]) -> tuple[ServiceClass, ...]:
    """Returns the classes in the order of first use; requests without a class have the default one."""
    names = list(dict.fromkeys(arrival.service_class or DEFAULT_CLASS for arrival in arrivals))
    for name in weights:
        if name not in names:
            raise InputError(f"--class-weight: no request has the class {name!r}; the classes are {', '.join(names)}")
    return tuple(ServiceClass(name, weight=weights.get(name, 1.0)) for name in names)
