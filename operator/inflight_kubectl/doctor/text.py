"""A result as a line for a terminal, with its remedy below it."""

from __future__ import annotations

from rich.text import Text

from inflight_kubectl.doctor.result import Result

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def line(result: Result) -> Text:
    """`ok    cluster: ...`; a remedy is on a separate line, so that it can be copied."""
    text = Text(f"{result.level:5}", style=_STYLES[result.level])
    text.append(f" {result.check}: ", style="bold").append(result.found, style="not bold default")
    if result.remedy:
        text.append(f"\n      > {result.remedy}", style="not bold cyan")
    return text
