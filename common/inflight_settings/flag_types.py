"""Parsers of single values for argparse: numbers with bounds, and sizes."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable
from typing import Any

_SIZES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def number(kind: type[int] | type[float], least: float, most: float = math.inf) -> Callable[[str], Any]:
    """A parser of one number with its bounds, for argparse. Without `most` a float may be infinite."""

    def parse(text: str) -> int | float:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {'an integer' if kind is int else 'a number'}") from None
        if not least <= value <= most:
            bounds = f"at least {least:g}" if most >= sys.float_info.max else f"between {least:g} and {most:g}"
            raise argparse.ArgumentTypeError(f"must be {bounds}, not {text}")
        return value

    return parse


def above_zero(most: float) -> Callable[[str], float]:
    """A parser of a number above 0."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value <= most:
            raise argparse.ArgumentTypeError(f"must be a number above 0, at most {most:g}, not {text!r}")
        return value

    return parse


def whole(expected: str, least: int, most: float = math.inf) -> Callable[[str], int]:
    """A parser of a whole number in digits alone. Args: expected: what the error message asks for."""

    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not {expected}")
        return int(text)

    return parse


def matching(pattern: str, expected: str) -> Callable[[str], str]:
    """A parser of text that matches a pattern as a whole. Args: expected: what the error message asks for."""

    def parse(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise argparse.ArgumentTypeError(f"{text!r} is not {expected}")
        return text

    return parse


def between(least: float, most: float, unit: str = "") -> Callable[[str], float]:
    """A parser of a number whose error message repeats the text. Args: unit: in the message, such as ` of seconds`."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number{unit} from {least:g} to {most:g}")
        return value

    return parse


def size(text: str, least: int = 1) -> int:
    """Bytes from `2Gi`, `512Mi`, `1.5G` or a plain number: Kubernetes' suffixes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kMGT]|[KMGT]i)?B?", text.strip())
    value = int(float(match[1]) * _SIZES[match[2] or ""]) if match else -1
    if value < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write bytes, or a number with Ki, Mi, Gi, as in 2Gi")
    return value
