"""Text form of a plan."""

from __future__ import annotations

import math

from inflight_simulator.fleet.breaking import KV_CACHE, MOST, SLOTS, TPOT, TTFT, first_to_break
from inflight_simulator.fleet.config import RequestTargets
from inflight_simulator.fleet.plan import Plan, ReplicaPlan

_MEANING = {
    TTFT: "prompts fill the steps, so requests wait for their first token",
    TPOT: "steps get too long, so output tokens come too slowly",
    KV_CACHE: "the KV cache is full, so requests wait or are preempted",
    SLOTS: "all slots are taken, so requests wait",
}
_WIDTH = 24


def plan_text(plan: Plan, targets: RequestTargets) -> str:
    traffic = plan.traffic
    prefill = f" + {targets.prefill_factor:g} x its prefill" if targets.prefill_factor is not None else ""
    lines = [
        f"{traffic.requests:,} requests in {_duration(traffic.seconds)}: {traffic.requests_per_second:.1f} a second on "
        f"average, {traffic.peak_requests_per_second:.1f} in the busiest minute,",
        f"of {traffic.prompt_tokens:,.0f} prompt and {traffic.output_tokens:,.0f} output tokens on average.",
        f"Targets: first token within {_ms(targets.ttft)}{prefill} ({_ms(targets.long_ttft)} for prompts over "
        f"{targets.long_prompt:,} tokens), {_ms(targets.tpot)} per output token.",
        f"{_percent(plan.attainment)} of the requests must keep both.",
    ]
    for each in plan.replicas:
        lines += ["", each.name, *_replica(each, plan.attainment)]
    if len(plan.replicas) > 1:
        lines += ["", *_conclusion(plan)]
    return "\n".join(lines)


def _replica(each: ReplicaPlan, attainment: float) -> list[str]:
    limits = each.limits
    lines = [
        _line("limits", f"max_num_seqs {limits.max_num_seqs}, max_num_batched_tokens {limits.max_num_batched_tokens}")
    ]
    if each.peak_replicas is None:
        return [*lines, _line("replicas", "no number is enough: one request alone misses the targets or does not fit")]
    lines += [
        _line("one replica carries", f"{each.requests_per_second:.1f} requests a second of the busiest minute"),
        _line("by the capacity model", f"{each.mean_replicas} on average, {each.peak_replicas} in the busiest minute"),
    ]
    checked = each.checked
    if checked is None:
        return [
            *lines,
            _line("simulated", f"no number that was tried keeps {_percent(attainment)} of the requests in target"),
        ]
    less = "" if checked.one_less is None else f"; {_keep(checked.replicas - 1)} {checked.one_less:.2%}"
    lines.append(_line("simulated", f"{_keep(checked.replicas)} {checked.attainment:.2%} in target{less}"))
    if each.cost is not None:
        cost = each.cost
        lines.append(
            _line(
                "cost",
                f"{cost.per_hour:,.2f} an hour ({cost.per_replica_hour:g} a replica); "
                f"{cost.per_million_output_tokens:.3g} per million output tokens, "
                f"{cost.per_million_tokens:.3g} per million tokens in and out",
            )
        )
    first = first_to_break(each.breaking)
    factors = ", ".join(f"{name} {_factor(each.breaking[name])}" for name in each.breaking)
    lines += [
        _line("room", f"by the capacity model, in times the busiest minute: {factors}"),
        _line("breaks first", f"{first}: {_MEANING[first]}"),
        _line(
            "at twice the load",
            f"{_keep(checked.replicas)} {checked.twice_attainment:.2%}: "
            f"{checked.twice_missed_ttft:.2%} of the requests miss TTFT, {checked.twice_missed_tpot:.2%} TPOT; "
            f"needed are {each.twice_replicas} by the capacity model",
        ),
    ]
    return lines


def _conclusion(plan: Plan) -> list[str]:
    able = [each for each in plan.replicas if each.checked is not None]
    if not able:
        return ["None of them keeps the targets."]
    priced = [(each.cost.per_hour, each.name) for each in able if each.cost is not None]
    if len(priced) == len(able):
        per_hour, name = min(priced)
        return [f"Cheapest: {name} at {per_hour:,.2f} an hour."]
    counts = ", ".join(f"{each.name} {each.checked.replicas}" for each in able if each.checked is not None)
    return [f"Replicas needed: {counts}. With a price of each the cheapest is named."]


def _line(label: str, text: str) -> str:
    return f"  {label:<{_WIDTH}}{text}"


def _factor(value: float) -> str:
    return f"over {MOST:g}" if math.isinf(value) else f"{value:.2f}"


def _keep(count: int) -> str:
    return f"{count} replicas keep" if count > 1 else "1 replica keeps"


def _percent(share: float) -> str:
    return f"{100 * share:g}%"


def _ms(seconds: float) -> str:
    return f"{seconds:g} s" if seconds >= 1 else f"{1e3 * seconds:g} ms"


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
