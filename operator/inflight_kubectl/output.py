"""Output of all commands: JSON, plain tables, and errors that name the remedy.

Exit codes: 0 for success, 1 for an error, 2 for wrong usage.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any

import click

from inflight_base.manifest.units import format_seconds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

FAILURE = 1


class Problem(click.ClickException):
    """An actionable error; click prints it as one line and exits with code 1.

    Args:
        what: the error, without a full stop.
        remedy: action for the user; empty without a useful one.
    """

    exit_code = FAILURE

    def __init__(self, what: str, remedy: str = "") -> None:
        self.what = what
        self.remedy = remedy
        super().__init__(f"{what}. {remedy}" if remedy else what)

    def show(self, file: IO[Any] | None = None) -> None:
        """Prints `error: ...` on standard error."""
        click.echo(f"error: {self.message}", file=file or sys.stderr)


def described(error: Exception) -> str:
    """Returns the text of an error, for views that show it and continue; an unexpected error includes its type."""
    if isinstance(error, Problem):
        return error.what
    return f"unexpected {type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


def json_option(function: Any) -> Any:
    """Adds `--json`, passed as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def print_json(value: Any) -> None:
    """Prints `value` as indented JSON. Dataclasses become objects with camelCase names, times RFC 3339 text."""
    click.echo(json.dumps(value, indent=2, default=_plain, ensure_ascii=False))


def in_utc(moment: datetime) -> datetime:
    """Returns `moment` in UTC; where that is outside the years 1 to 9999, its own date and time of day."""
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        return moment.replace(tzinfo=UTC)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {_camel(field.name): getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, datetime):
        return in_utc(value).isoformat(timespec="seconds").replace("+00:00", "Z")
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _camel(name: str) -> str:
    first, *more = name.split("_")
    return first + "".join(word.capitalize() for word in more)


def console(most: int = 200) -> Console:
    """Returns a Rich console on standard output, with colours on a terminal only.

    Args:
        most: maximum line length, and the width for output to a file.
    """
    from rich.console import Console

    found = Console(file=sys.stdout, highlight=False)
    found.width = min(found.width, most) if sys.stdout.isatty() else most
    return found


def plain_table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """Returns a table in kubectl's style: upper-case headings, two spaces between columns, no lines.

    Args:
        right: columns with numbers, aligned to the right.
    """
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column.upper(), justify="right" if column in right else "left", no_wrap=True)
    return table


def age(moment: datetime | None, now: datetime | None = None) -> str:
    """Returns the time since `moment` in kubectl's format: `12s`, `5m`, `3h`, `2d`; `-` for None."""
    if moment is None:
        return "-"
    return span(((now or datetime.now(UTC)) - moment).total_seconds())


def span(seconds: float) -> str:
    """Returns a length of time in its largest unit: `12s`, `5m`, `3h`, `2d`. Negative ones count as zero."""
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole}s"
    for length, unit, below in ((60, "m", 7200), (3600, "h", 172_800)):
        if whole < below:
            return f"{whole // length}{unit}"
    return f"{whole // 86_400}d"


def latency(seconds: float | None) -> str:
    """Returns a latency in the operator's form: `71ms` below a second, else `2.4s`; `-` for None."""
    return "-" if seconds is None else format_seconds(seconds)
