"""Lenient parsing of parts of an object written for another version of the CRD.

A missing field has its default. So has a field with an unreadable value, with a note about it: it must not make the
whole object unreadable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from inflight_base.manifest.units import parse_duration, whole_bytes

T = TypeVar("T")
U = TypeVar("U")


class Part:
    """An object inside a manifest.

    Args:
        value: any value; anything other than an object counts as empty.
        path: its path for notes, such as `spec.gateway`.
        notes: receives a sentence for each unreadable field.
    """

    def __init__(self, value: Any, path: str, notes: list[str]) -> None:
        self._path = path
        self._notes = notes
        if value is not None and not isinstance(value, dict):
            self._note("", "it is no object")
        self._fields: dict[str, Any] = value if isinstance(value, dict) else {}

    def has(self, name: str) -> bool:
        return self._fields.get(name) is not None

    def part(self, name: str) -> Part:
        return Part(self._fields.get(name), f"{self._path}.{name}", self._notes)

    def parts(self, name: str) -> list[Part]:
        """The objects in a list; empty without one."""
        items: list[Any] = self._read(name, [], _list)
        return [Part(item, f"{self._path}.{name}[{position}]", self._notes) for position, item in enumerate(items)]

    def flag(self, name: str, default: bool) -> bool:
        return self._read(name, default, _flag)

    def text(self, name: str, default: T) -> str | T:
        """Returns a text that is not empty."""
        return self._read(name, default, _text)

    def texts(self, name: str) -> tuple[str, ...]:
        """Returns a list of texts that are not empty; empty without one."""
        return self._read(name, (), lambda value: tuple(_text(each) for each in _list(value)))

    def whole(self, name: str, default: T, least: int = 0) -> int | T:
        """Returns a whole number of at least `least`."""
        return self._read(name, default, lambda value: _at_least(_whole(value), least))

    def number(self, name: str, default: T, least: float = 0.0) -> float | T:
        return self._read(name, default, lambda value: _at_least(_number(value), least))

    def seconds(self, name: str, default: T) -> float | T:
        return self._read(name, default, lambda value: parse_duration(_text(value)))

    def whole_bytes(self, name: str, default: T) -> int | T:
        return self._read(name, default, lambda value: whole_bytes(value if isinstance(value, int) else _text(value)))

    def _read(self, name: str, default: T, read: Callable[[Any], U]) -> U | T:
        value = self._fields.get(name)
        if value is None:
            return default
        try:
            return read(value)
        except ValueError as error:
            self._note(f".{name}", str(error))
            return default

    def _note(self, field: str, why: str) -> None:
        self._notes.append(f"{self._path}{field} cannot be read and is ignored: {why}")


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r:.40} is neither true nor false")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r:.40} is no text")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("it is no list")
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r:.40} is no whole number")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r:.40} is no number")
    return float(value)


def _at_least(value: T, least: float) -> T:
    if not value >= least:  # type: ignore[operator]
        raise ValueError(f"{value} is below {least:g}")
    return value
