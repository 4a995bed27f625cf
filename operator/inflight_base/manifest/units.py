"""Durations ("500ms", "1m30s"), Kubernetes quantities ("4Gi", "250m"), shares ("10%") and prices: text and numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache

_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_DURATION = re.compile(rf"(?:{_DURATION_PART.pattern})+")
_SECONDS = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)}

_QUANTITY = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?")
_BINARY = {f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", start=1)}
_DECIMAL = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal("1e3"),
    **{letter: Decimal(1000) ** power for power, letter in enumerate("MGTPE", start=2)},
}

SHARE_PATTERN = "^(100|[1-9]?[0-9])%$"
"""A percentage, 0% to 100%."""

_MAX_LENGTH = 64
"""Longest text that is read, in characters; numbers that people write are shorter."""

_KNOWN = 512
"""Texts whose numbers are kept: thousands of objects repeat the same ones."""


@lru_cache(maxsize=_KNOWN)
def parse_duration(text: str) -> float:
    """Seconds in a duration written as Go does: numbers with the units ms, s, m, h, such as `500ms` or `1m30s`.

    Raises:
        ValueError: `text` is not such a duration.
    """
    if len(text) > _MAX_LENGTH or not _DURATION.fullmatch(text):
        raise ValueError(
            f"{text[:_MAX_LENGTH]!r} is not a duration:"
            " write a number with a unit of ms, s, m or h, such as 500ms or 2s"
        )
    return float(sum(Decimal(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(text)))


def format_seconds(seconds: float) -> str:
    """A duration in human-readable form: `71ms` below a second, else seconds with at most one decimal.

    Raises:
        ValueError: `seconds` is negative.
    """
    if seconds < 0:
        raise ValueError(f"a duration cannot be negative: {seconds}")
    if seconds < 0.9995:
        return f"{round(seconds * 1000)}ms"
    return f"{seconds:.1f}".removesuffix(".0") + "s"


def format_price(amount: float) -> str:
    """An amount of money: two decimals, or three digits of what is below one."""
    if amount == 0 or amount >= 0.995:
        return f"{amount:.2f}"
    return f"{amount:.3g}" if amount >= 1e-4 else f"{amount:.2e}"


@lru_cache(maxsize=_KNOWN, typed=True)
def parse_quantity(quantity: str | int) -> Decimal:
    """The number a Kubernetes quantity stands for: `4Gi` is 4294967296, `250m` is 0.25.

    Raises:
        ValueError: `quantity` is not in the form the Kubernetes API defines for resource.Quantity.
    """
    text = str(quantity)
    match = _QUANTITY.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    if match is None:
        raise ValueError(
            f"{text[:_MAX_LENGTH]!r} is not a quantity: write a number with a unit, such as 4Gi, 500M or 250m"
        )
    number, suffix = match.groups()
    if suffix is None:
        return Decimal(number)
    if suffix in _BINARY:
        return Decimal(number) * _BINARY[suffix]
    if suffix in _DECIMAL:
        return Decimal(number) * _DECIMAL[suffix]
    return Decimal(number).scaleb(int(suffix[1:]))


def whole_bytes(quantity: str | int) -> int:
    """Bytes in a quantity of memory, rounded down.

    Raises:
        ValueError: `quantity` is negative, between 0 and 1, in parts of a byte (1500m), or no resource.Quantity.
    """
    text = str(quantity)
    try:
        number = parse_quantity(text)
    except ValueError:
        number = Decimal(-1)
    if text.endswith(("n", "u", "m")) or (number < 1 and number != 0):
        raise ValueError(f"{text[:_MAX_LENGTH]!r} is not a quantity of bytes such as 64Mi or 500M")
    return int(number)


@dataclass(frozen=True, slots=True)
class Share:
    """A number, or a percentage of a total."""

    number: int
    percent: bool = False

    def of(self, total: int) -> int:
        """Returns the number for this total; a percentage is rounded up, as `maxSurge` of a Deployment is."""
        return -(-total * self.number // 100) if self.percent else self.number


def parse_share(text: str | int) -> Share:
    """A number such as 3 or `3`, or a percentage such as `10%`.

    Raises:
        ValueError: `text` is neither.
    """
    said = str(text)
    if re.fullmatch(SHARE_PATTERN, said):
        return Share(int(said[:-1]), percent=True)
    if said.isascii() and said.isdigit() and len(said) <= len("10000") and int(said) <= 10000:
        return Share(int(said))
    raise ValueError(f"{said[:_MAX_LENGTH]!r} is neither a number from 0 to 10000 nor a percentage from 0% to 100%")
