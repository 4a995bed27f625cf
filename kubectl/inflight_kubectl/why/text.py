"""The explanation for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from inflight_kubectl.output import age
from inflight_kubectl.why.report import Report, Statement

_SIGNS = {True: ("✓", "green"), False: ("✗", "bold red"), None: ("·", "dim")}
_STATE_STYLES = {"Ready": "bold green", "Updating": "bold green", "Failing": "bold red"}


def rendered(report: Report) -> RenderableType:
    """State, conditions, what it waits for, what would make it act, decisions."""
    title = Text(f"{report.namespace}/{report.name} is ").append(
        report.state, style=_STATE_STYLES.get(report.state, "bold yellow")
    )
    parts: list[RenderableType] = [title, Text(), Text("CONDITIONS", style="bold"), _conditions(report)]
    parts += _section("WAITS FOR", report.waits_for, "Nothing: all ordered replicas are ready.")
    parts += _section("WHAT WOULD MAKE IT ACT", report.would_act, "Not known: the operator has not written a status.")
    parts += [Text(), Text("LAST DECISIONS", style="bold"), _decisions(report)]
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


def _grid() -> Table:
    table = Table.grid(padding=(0, 1, 0, 0), pad_edge=False, expand=True)
    table.add_column(width=1)
    table.add_column(ratio=1)
    table.add_column(justify="right", width=4)
    return table
