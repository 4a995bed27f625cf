"""The syntax of `--service-class`: NAME[:weight=4,priority=0,ttft=0.5,tpot=0.05,max_queued=100,shed_after=5,
request_timeout=600]."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from inflight_settings.scheduling import ServiceClass

LARGEST_WEIGHT = 1e6
"""Of a class; any number above 0 is small enough."""

HIGHEST_PRIORITY, LOWEST_PRIORITY = -100, 100
"""Bounds of a priority: with aging, any wait is bounded by their distance."""

_MAX_NAME_LENGTH = 63
_MOST_SECONDS = 1e6


def parse_service_class(text: str) -> ServiceClass:
    """One service class.

    Raises:
        ValueError: it is not of that form; the message names the part.
    """
    name, colon, settings = text.partition(":")
    if len(name) > _MAX_NAME_LENGTH or re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name) is None:
        raise ValueError(
            f"{name!r} is not the name of a class: small letters, digits and dashes inside, at most {_MAX_NAME_LENGTH}"
        )
    fields: dict[str, Any] = {}
    for setting in settings.split(",") if colon else ():
        key, equals, value = setting.partition("=")
        if key not in _SETTINGS or not equals:
            raise ValueError(f"class {name}: {setting!r} is not one of {', '.join(f'{key}=' for key in _SETTINGS)}")
        field, parse = _SETTINGS[key]
        if field in fields:
            raise ValueError(f"class {name}: {key} is given twice")
        try:
            fields[field] = parse(value)
        except ValueError as error:
            raise ValueError(f"class {name}: {key} {error}, not {value!r}") from None
    return ServiceClass(name, **fields)


def _integer(least: int, most: int | None) -> Callable[[str], int]:
    def parse(text: str) -> int:
        bounds = f"at least {least}" if most is None else f"between {least} and {most}"
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"must be an integer {bounds}") from None
        if value < least or (most is not None and value > most):
            raise ValueError(f"must be {bounds}")
        return value

    return parse


def _positive(most: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value <= most:
            raise ValueError(f"must be a number above 0, at most {most:g}")
        return value

    return parse


_SETTINGS: dict[str, tuple[str, Callable[[str], int | float]]] = {
    "weight": ("weight", _positive(LARGEST_WEIGHT)),
    "priority": ("priority", _integer(HIGHEST_PRIORITY, LOWEST_PRIORITY)),
    "ttft": ("ttft_target", _positive(_MOST_SECONDS)),
    "tpot": ("tpot_target", _positive(_MOST_SECONDS)),
    "max_queued": ("max_queued_requests", _integer(1, None)),
    "shed_after": ("shed_after", _positive(_MOST_SECONDS)),
    "request_timeout": ("request_timeout", _positive(_MOST_SECONDS)),
}
