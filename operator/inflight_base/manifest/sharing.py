"""Sharing of equal parts of manifests: thousands of them repeat the same keys, names and whole blocks."""

from __future__ import annotations

from functools import lru_cache
from sys import intern
from typing import Any

_LONGEST = 64
"""Maximum length of shared strings, in characters; longer strings are seldom equal in two objects."""

_PARTS = 4096
"""Number of parts that are known: those of the kinds of children that most services have, and some of the latest."""


def shared(value: Any) -> Any:
    """Returns the JSON value, which must not be changed, with one object for equal parts."""
    return _thawed(_frozen(value))


def _frozen(value: Any) -> Any:
    """Returns the value in a form with a hash; true and 1 differ in it."""
    if isinstance(value, str):
        return intern(value) if len(value) <= _LONGEST else value
    if isinstance(value, dict):
        return dict, tuple([(intern(key), _frozen(item)) for key, item in value.items()])
    if isinstance(value, list):
        return list, tuple([_frozen(item) for item in value])
    return type(value), value


def _thawed(frozen: Any) -> Any:
    if isinstance(frozen, str):
        return frozen
    return _part(frozen) if frozen[0] in (dict, list) else frozen[1]


@lru_cache(maxsize=_PARTS)
def _part(frozen: Any) -> Any:
    kind, parts = frozen
    if kind is dict:
        return {key: _thawed(item) for key, item in parts}
    return [_thawed(item) for item in parts]
