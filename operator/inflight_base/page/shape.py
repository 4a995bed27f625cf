"""Pages of a known shape: an engine's page is the same from scrape to scrape but for its numbers, and engines of one
version have the same. Where the text between the numbers is known, so is what each number means, and only the numbers
are read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

LONGEST_TEXT = 2**16
"""Longest page in characters whose shape is kept: hostile engines must not fill the memory with shapes."""

MOST_NUMBERS = 1024
"""Most numbers of a page whose shape is kept."""

_NUMBER = re.compile(r" ([0-9][0-9.e+-]*)\n")
"""The number at the end of a line. All that a reader of lines takes from a line with such a number is before it."""

_MODEL = re.compile(r'\bmodel_name="([^"\\\n]+)"')
_NO_MODEL = 'model_name=""'


class Series(NamedTuple):
    """A wanted line of a shape.

    Attributes:
        name: name of the sample.
        edge: text of the upper bound of a bucket; empty without one.
        key: text of the label by which its series differ; empty without one.
        place: index of its number among the numbers of the page.
    """

    name: str
    edge: str
    key: str
    place: int


class Split(NamedTuple):
    """A page in parts: `texts` stand before, between and after `numbers`."""

    texts: tuple[str, ...]
    numbers: list[str]


def split(text: str) -> Split | None:
    """Returns the parts of a page; None for one that is too large. The name of the model is left out of the texts,
    which most services have of their own and no number depends on."""
    if len(text) > LONGEST_TEXT:
        return None
    model = _MODEL.search(text)
    if model is not None:
        text = text.replace(model[0], _NO_MODEL)
    parts = _NUMBER.split(text)
    return Split(tuple(parts[::2]), parts[1::2]) if len(parts) <= 2 * MOST_NUMBERS else None


def wanted(texts: Sequence[str], line: re.Pattern[str]) -> tuple[Series, ...] | None:
    """Returns the wanted series of all pages with these texts; None if one of their wanted lines does not end in a
    number, or has a text after it.

    Args:
        line: pattern of a wanted line: name, edge, key, number, and the text after the number.
    """
    number = " 0\n"
    ends = accumulate(len(text) + len(number) for text in texts)
    indices = {end - len("0\n"): index for index, end in enumerate(ends)}
    series = []
    for match in line.finditer(number.join(texts)):
        name, edge, key, _, rest = match.groups("")
        index = indices.get(match.start(4))
        if index is None or rest:
            return None
        series.append(Series(name, edge, key, index))
    return tuple(series)
