"""The outcome of one check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Result:
    """Attributes:
    check: what was looked at, in a word or two.
    level: `fail` stops services from working; `warn` takes something away or could not be checked.
    found: in one sentence, without a full stop.
    remedy: the command that fixes it; empty where all is well.
    """

    check: str
    level: Level
    found: str
    remedy: str = ""


def ok(check: str, found: str) -> Result:
    """All is well."""
    return Result(check, "ok", found)


def warn(check: str, found: str, remedy: str = "") -> Result:
    """Something is missing that services can do without."""
    return Result(check, "warn", found, remedy)


def fail(check: str, found: str, remedy: str) -> Result:
    """Services do not work because of it."""
    return Result(check, "fail", found, remedy)
