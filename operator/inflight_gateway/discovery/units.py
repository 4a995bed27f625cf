"""Durations ("500ms", "1m30s") and Kubernetes quantities ("64Mi") as numbers."""

from __future__ import annotations

import re
from decimal import Decimal

_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")
_SECONDS = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)}

_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(Ki|Mi|Gi|Ti|Pi|Ei|[kMGTPE]|[eE][+-]?[0-9]{1,2})?")
_FACTORS = {
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", start=1)},
    **{letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", start=1)},
}

_MAX_LENGTH = 32
"""Of a text that is read: numbers that people write are shorter."""


def seconds(text: str) -> float:
    """Seconds in a duration: numbers with the units ms, s, m and h, as Go writes them.

    Raises:
        ValueError: `text` is not such a duration.
    """
    if len(text) > _MAX_LENGTH or not _DURATION.fullmatch(text):
        raise ValueError(f"{text[:_MAX_LENGTH]!r} is not a duration such as 500ms, 2s or 1m30s")
    return float(sum(Decimal(number) * _SECONDS[unit] for number, unit in _PART.findall(text)))


def whole_bytes(quantity: str | int) -> int:
    """Bytes in a quantity of memory, rounded down.

    Raises:
        ValueError: `quantity` is negative, a fraction below 1 (250m), or no resource.Quantity.
    """
    text = str(quantity)
    match = _QUANTITY.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    if match is None:
        raise ValueError(f"{text[:_MAX_LENGTH]!r} is not a quantity of bytes such as 64Mi or 500M")
    number, suffix = Decimal(match[1]), match[2] or ""
    if suffix and suffix not in _FACTORS:
        return int(number.scaleb(int(suffix[1:])))
    return int(number * _FACTORS.get(suffix, Decimal(1)))
