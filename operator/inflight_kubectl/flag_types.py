"""Values of flags: durations, ranges of whole numbers, and values of HTTP headers."""

from __future__ import annotations

import re
from typing import Any

import click

from inflight_base.manifest.units import parse_duration

_DAYS = re.compile(r"([0-9]+(\.[0-9]+)?)d")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")


class DurationType(click.ParamType[float]):
    """A duration such as `30s`, `10m`, `1h30m` or `90d`, as seconds.

    Args:
        least, most: bounds, in seconds.
    """

    name = "duration"

    def __init__(self, least: float, most: float) -> None:
        self.least, self.most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Returns the seconds; usage errors name the form and the bounds."""
        if isinstance(value, float):
            return value
        try:
            length = parse_duration(_DAYS.sub(lambda days: f"{float(days[1]) * 24}h", value))
        except ValueError:
            self.fail(f"{value!r} is no duration: write a number with its unit, such as 30s, 10m or 1h30m", param, ctx)
        if not self.least <= length <= self.most:
            self.fail(f"{value} is not between {duration_text(self.least)} and {duration_text(self.most)}", param, ctx)
        return length


class HeaderType(click.ParamType[str]):
    """The value of an HTTP header: printable ASCII (RFC 9110, field values)."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Returns the value itself; usage errors name the characters that a header takes."""
        if not (value.isascii() and value.isprintable()):
            self.fail(f"{value!r} cannot be the value of a header: use printable ASCII characters", param, ctx)
        return str(value)


def api_key_option(function: Any) -> Any:
    """Adds `--api-key`, passed as `api_key`."""
    return click.option(
        "--api-key",
        type=HeaderType(),
        metavar="KEY",
        envvar="INFLIGHT_API_KEY",
        help="API key of a service behind the gateway. Default: $INFLIGHT_API_KEY.",
    )(function)


class RangeType(click.ParamType[tuple[int, int]]):
    """A whole number from 1 on, or a range of them such as `64-512`, as (lowest, highest)."""

    name = "number or range"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Returns both ends; usage errors name the form."""
        if isinstance(value, tuple):
            return value
        match = _RANGE.fullmatch(value)
        low = int(match[1]) if match else 0
        high = int(match[2] or low) if match else 0
        if not 1 <= low <= high:
            self.fail(f"{value!r} is neither a number from 1 on nor a range such as 64-512", param, ctx)
        return low, high


def duration_text(length: float) -> str:
    """Returns a duration in the form of the flags: `90s` is `1m30s`."""
    if 0 < length < 1:
        return f"{round(length * 1000)}ms"
    hours, rest = divmod(round(length), 3600)
    minutes, rest = divmod(rest, 60)
    parts = ((hours, "h"), (minutes, "m"), (rest, "s"))
    return "".join(f"{number}{unit}" for number, unit in parts if number) or "0s"
