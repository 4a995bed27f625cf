"""The explanation for a terminal."""

from __future__ import annotations

from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from inflight_kubectl.engines.engine_metrics import Tier, Tiers
from inflight_kubectl.engines.gateway_view import GatewayView, PickedRequest
from inflight_kubectl.output import age, latency
from inflight_kubectl.why.report import Report, Statement

_SIGNS = {True: ("✓", "green"), False: ("✗", "bold red"), None: ("·", "dim")}
_STATE_STYLES = {
    **dict.fromkeys(("Ready", "Updating", "Idle", "Asleep"), "bold green"),
    "Failing": "bold red",
}

_TIERS = {"host": "Host memory", "disk": "Disk"}
_REFUSALS = {
    "slower": "requests computed its blocks, which took less time",
    "stalled": "requests computed its blocks, as the disk hung",
    "full": "requests computed its blocks, as host memory was full of other loads",
    "late": "requests computed its blocks, as they came too late",
}
"""Texts of the reasons for which loads are refused."""


def rendered(report: Report) -> RenderableType:
    """Returns state, conditions, pending work, conditions for action, decisions, and the gateway's last picks."""
    title = Text(f"{report.namespace}/{report.name} is ").append(
        report.state, style=_STATE_STYLES.get(report.state, "bold yellow")
    )
    parts: list[RenderableType] = [title, Text(), Text("CONDITIONS", style="bold"), _conditions(report)]
    parts += _section("WAITS FOR", report.waits_for, "Nothing: all ordered replicas are ready.")
    parts += _section("WHAT WOULD MAKE IT ACT", report.would_act, "Not known: the operator has not written a status.")
    parts += [Text(), Text("LAST DECISIONS", style="bold"), _decisions(report)]
    if report.tiers is not None:
        parts += [Text(), Text("KV CACHE BEHIND THE DEVICES", style="bold"), _tiers(report.tiers)]
    if report.gateway is not None:
        parts += [Text(), Text("GATEWAY", style="bold"), _gateway(report.gateway)]
        parts += [Text(), Text("LAST PICKS", style="bold"), _picks(report.gateway, report.at)]
    return Group(*parts)


def _conditions(report: Report) -> RenderableType:
    if not report.conditions:
        return Text("  None: the operator has not written a status.", style="dim")
    table = _grid()
    for one in report.conditions:
        sign, style = _SIGNS[one.good]
        table.add_row(Text(sign, style=style), _statement(one), Text(age(one.since, report.at), style="dim"))
    return table


def _statement(one: Statement) -> Text:
    text = Text(one.type, style="bold").append(f": {one.meaning}", style="not bold")
    return text.append(f" ({one.reason})", style="dim not bold").append(f"\n{one.message}", style="not bold")


def _section(title: str, lines: tuple[str, ...], empty: str) -> list[RenderableType]:
    table = _grid()
    for line in lines or (empty,):
        table.add_row(Text("-" if lines else " ", style="dim"), Text(line, style="" if lines else "dim"), "")
    return [Text(), Text(title, style="bold"), table]


def _decisions(report: Report) -> RenderableType:
    if not report.decisions:
        return Text("  None yet.", style="dim")
    table = _grid()
    for one in report.decisions:
        text = Text("" if one.applied else "advice: ").append(one.change, style="bold").append(f"\n{one.reason}")
        numbers = ", ".join(f"{name} {value:.4g}" for name, value in one.numbers.items())
        if numbers:
            text.append(f"\n{numbers}", style="dim")
        table.add_row("", text, Text(age(one.time, report.at), style="cyan"))
    return table


def _tiers(found: Tiers) -> RenderableType:
    table = _grid()
    if found.problem is not None:
        table.add_row(Text("✗", style="bold red"), Text(found.problem), "")
    for tier in found.tiers:
        table.add_row(Text("-", style="dim"), _tier(tier), "")
    return table


def _tier(tier: Tier) -> Text:
    """Returns what a tier holds and brought, and what it did not."""
    text = Text(_TIERS.get(tier.name, tier.name), style="bold")
    speed = "" if tier.bytes_per_second is None else f" at {tier.bytes_per_second / 1e9:.2g} GB/s"
    text.append(f": {tier.blocks} blocks held, {tier.hit_tokens} tokens loaded{speed}", style="not bold")
    lacking = [(tier.failed_blocks, "blocks failed"), (tier.dropped_blocks, "blocks were not written")]
    lacking += [(count, _REFUSALS.get(reason, reason)) for reason, count in tier.refused.items()]
    said = ", ".join(f"{count} {what}" for count, what in lacking if count)
    return text.append(f"\n{said}", style="not bold") if said else text


def _gateway(view: GatewayView) -> RenderableType:
    table = _grid()
    if view.problem is not None:
        table.add_row(Text("✗", style="bold red"), Text(view.problem), "")
    if view.pods:
        held = f"{view.held} requests held"
        if view.held:
            held += f" ({view.held_prompt_tokens} prompt tokens, the oldest for {latency(view.oldest_held_s)})"
        pods = f"{len(view.pods)} gateway pod{'s' * (len(view.pods) != 1)}"
        owner = f"; {view.owner} decides on them" if view.owner else ""
        table.add_row(Text("-", style="dim"), Text(f"{held}, {view.in_flight} in flight, at {pods}{owner}"), "")
    return table


def _picks(view: GatewayView, now: datetime) -> RenderableType:
    if not view.picks:
        return Text("  None that the gateway remembers.", style="dim")
    table = _grid()
    for one in view.picks:
        table.add_row("", _pick(one), Text(age(one.at, now), style="cyan"))
    return table


def _pick(one: PickedRequest) -> Text:
    """Returns the destination of a request with the reason, its outcome, and its metrics."""
    text = Text(" -> ".join(one.pods) or "no pod", style="bold").append(f" ({one.reason})", style="dim not bold")
    text.append(f": {_ending(one)}", style="not bold")
    whose = ", ".join(word for word in (one.tenant and f"tenant {one.tenant}", f"class {one.service_class}") if word)
    held = f", held {latency(one.held_s)}" if one.held_s >= 0.001 else ""
    cached = f" ({one.cached_tokens} expected in the prefix cache)" if one.cached_tokens else ""
    text.append(f"\n{one.prompt_tokens} prompt tokens{cached}{held}, {whose}, {one.request_id}", style="dim not bold")
    scores = ", ".join(f"{name} {value:.3g}" for name, value in one.scores.items())
    return text.append(f"\nscores: {scores}", style="dim not bold") if scores else text


def _ending(one: PickedRequest) -> str:
    predicted = f" (predicted {latency(one.predicted_ttft_s)})" if one.predicted_ttft_s is not None else ""
    if not one.ended:
        return f"in progress{predicted}"
    said = {None: "ended, status not known", 0: "the client left"}.get(one.status, str(one.status))
    ttft = f", TTFT {latency(one.ttft_s)}{predicted}" if one.ttft_s is not None else ""
    times = "once" if one.continuations == 1 else f"{one.continuations} times"
    again = f", continued {times}" if one.continuations else ""
    return f"{said}{ttft}{again}"


def _grid() -> Table:
    table = Table.grid(padding=(0, 1, 0, 0), pad_edge=False, expand=True)
    table.add_column(width=1)
    table.add_column(ratio=1)
    table.add_column(justify="right", width=4)
    return table
