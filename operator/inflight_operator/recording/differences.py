"""Differences of two values of one type, field by field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import zip_longest
from typing import Any

MAX_TEXT = 160
"""Characters of a value that are shown."""


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


_MISSING = _Missing()


@dataclass(frozen=True, slots=True)
class Difference:
    """Attributes:
    where: path to the field, as `memory.scaling.lowest[2]`.
    was, now: the two values.
    """

    where: str
    was: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.where}: recorded {_text(self.was)}, now {_text(self.now)}"


def differences(was: Any, now: Any, where: str = "") -> Iterator[Difference]:
    """The innermost values that differ. NaN equals itself."""
    if was is now or was == now or (was != was and now != now):
        return
    if is_dataclass(was) and type(was) is type(now):
        for field in fields(was):
            name = f"{where}.{field.name}" if where else field.name
            yield from differences(getattr(was, field.name), getattr(now, field.name), name)
    elif isinstance(was, Mapping) and isinstance(now, Mapping):
        for key in [*was, *(key for key in now if key not in was)]:
            yield from differences(was.get(key, _MISSING), now.get(key, _MISSING), f"{where}[{key!r}]")
    elif _is_list(was) and _is_list(now):
        for index, (one, other) in enumerate(zip_longest(was, now, fillvalue=_MISSING)):
            yield from differences(one, other, f"{where}[{index}]")
    else:
        yield Difference(where, was, now)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _text(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"
