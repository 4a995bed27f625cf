"""The outcome of one check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Result:
    """Attributes:
    check: subject of the check, in a word or two.
    level: `fail`: services do not work; `warn`: a feature is missing or could not be checked.
    found: the finding in one sentence, without a full stop.
    remedy: the command that fixes it; empty for a passed check.
    """

    check: str
    level: Level
    found: str
    remedy: str = ""


def ok(check: str, found: str) -> Result:
    """Returns the result of a passed check."""
    return Result(check, "ok", found)


def warn(check: str, found: str, remedy: str = "") -> Result:
    """Returns the result of a check that found an optional part missing."""
    return Result(check, "warn", found, remedy)


def fail(check: str, found: str, remedy: str) -> Result:
    """Returns the result of a check that found a failure that stops services from working."""
    return Result(check, "fail", found, remedy)
