"""Bounds of the text that a grammar leaves no choice of, in one piece.

llguidance finds such a run whole before it gives a mask, at 0.3 to 2 us a byte that nothing interrupts and no limit of
its own bounds: some 5,000 characters of rules can force 50 million.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from inflight_engine.formats.schemas import WHITE_SPACE, moves_references, parts_and_target, referred

MAX_FORCED = 8192
"""Characters of a run that may be found at once: some 15 ms."""

UNKNOWN = 10**9
"""A length that no run has to have: there may be no longest one, or it is not known."""

_SEPARATORS = 8
"""Characters around a value or a name, of white space too, where the schema writes no others."""

_TIMES = ("minItems", "minContains", "minProperties")
_REPEATED = re.compile(r"\{[^{}0-9]*0*(\d{1,9})")
"""The least count of a repetition, perhaps behind white space."""


def of_regex(regex: str) -> int:
    """Return at least the length of the longest run of a regular expression, in characters."""
    length = len(regex)
    for count in _REPEATED.finditer(regex):
        length *= max(1, int(count[1]))
        if length >= UNKNOWN:  # the product of all may have millions of digits
            return UNKNOWN
    return min(length, UNKNOWN)


def of_schema(schema: Mapping[str, Any]) -> int:
    """Return at least the length of the longest run of texts of a schema for llguidance, in characters."""
    guidance = schema.get("x-guidance")
    # White space that may be there or not is a choice, so no run goes on over it.
    apart = (
        isinstance(guidance, dict)
        and guidance.get("whitespace_pattern") == WHITE_SPACE
        and guidance.get("whitespace_flexible", True) is True
    )
    written = guidance.values() if isinstance(guidance, dict) else ()
    around = sum(of_regex(each) for each in written if isinstance(each, str) and each != WHITE_SPACE)
    runs = _Runs(schema, _SEPARATORS + around, apart=apart)
    try:
        return UNKNOWN if moves_references(schema) else max(runs.of(schema), runs.longest)
    except RecursionError:
        return UNKNOWN


class _Runs:
    """Runs of parts of a schema. `around`: characters around a value or a name. `apart`: values have runs of their own.
    `longest`: that of the parts so far."""

    def __init__(self, root: Mapping[str, Any], around: int, *, apart: bool) -> None:
        self.longest = 0
        self._root = root
        self._around = around
        self._apart = apart
        self._known: dict[int, int] = {}

    def of(self, part: Mapping[str, Any]) -> int:
        known = self._known.get(id(part))
        if known is not None:
            return known
        self._known[id(part)] = 0 if self._apart else UNKNOWN  # met again within itself
        length, target = self._around, referred(self._root, part)
        for keyword, value in part.items():
            match keyword, value:
                case "pattern", str():
                    length += of_regex(value)
                case "minLength", _:
                    length += _times(value)
                case "properties", dict():
                    length += sum(len(name) + self._around for name in value)
                case "patternProperties", dict():
                    length += sum(of_regex(name) + self._around for name in value)
                case (("const" | "enum" | "required"), _):
                    length += len(json.dumps(value, ensure_ascii=False))
                case (("$ref" | "$dynamicRef"), _) if target is None:
                    length = UNKNOWN
        self.longest = max(self.longest, length)
        inner = sum(map(self.of, parts_and_target(part, target, definitions=False)))
        if not self._apart:
            length = (length + inner) * math.prod(_times(part.get(keyword)) for keyword in _TIMES)
        self._known[id(part)] = length = min(length, UNKNOWN)
        return length


def _times(value: object) -> int:
    return int(min(value, UNKNOWN)) if isinstance(value, int | float) and value > 1 else 1
