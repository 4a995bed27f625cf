"""How many values a JSON text has, counted before any is made: decoding, validating and freeing them holds the lock of
the interpreter, some 0.1 us for each, and all streams wait."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MAX_ITEMS = 2**16
"""Maximum number of strings (names of fields too), objects and arrays of a body. Those of messages are validated in one
stretch, in which no stream goes on, in some 1 us each."""
MAX_COMMAS = 2**20
"""Maximum number of commas outside of strings, which bounds the numbers in arrays: token ids of long prompts."""

_PIECE = 2**18
"""Bytes that are looked at at a time, about a millisecond; other threads run in between."""

_QUOTE, _BACKSLASH, _COMMA = b'"\\,'
_OPENS = b"[{"


class TooManyValuesError(ValueError):
    """A body has more values than it may; the message is about `the body`."""


def check_size(body: bytes, max_commas: int = MAX_COMMAS) -> None:
    """Check the number of values of a JSON text; in one that is malformed, of those before the first fault.

    Raises:
        TooManyValuesError: it has more than `MAX_ITEMS` or `max_commas`.
    """
    if len(body) > MAX_ITEMS and not _is_surely_small(body, max_commas):
        items, commas = count(body)
        if items > MAX_ITEMS:
            raise TooManyValuesError(f"has more than {MAX_ITEMS} strings, objects and arrays")
        if commas > max_commas:
            raise TooManyValuesError(f"has more than {max_commas} values")


def _is_surely_small(body: bytes, max_commas: int) -> bool:
    """Return whether there are few enough even if no string has a comma, quote or bracket."""
    doubled = commas = 0
    for start in range(0, len(body), _PIECE):
        piece = body[start : start + _PIECE]
        doubled += piece.count(b'"') + 2 * (piece.count(b"[") + piece.count(b"{"))
        commas += piece.count(b",")
    return doubled <= 2 * MAX_ITEMS and commas <= max_commas


def count(body: bytes) -> tuple[int, int]:
    """Return the number of strings, objects and arrays, and that of commas outside of strings. Counting ends where
    there are too many."""
    items = commas = num_quotes = backslashes = 0
    for start in range(0, len(body), _PIECE):
        piece = np.frombuffer(body, np.uint8, min(_PIECE, len(body) - start), start)
        quotes, backslashes = _quotes(piece, backslashes)
        places = np.flatnonzero((piece == _OPENS[0]) | (piece == _OPENS[1]) | (piece == _COMMA))
        outside = places[(np.searchsorted(quotes, places) + num_quotes) % 2 == 0]
        num_commas = int(np.count_nonzero(piece[outside] == _COMMA))
        commas += num_commas
        items += len(outside) - num_commas
        num_quotes += len(quotes)
        if items + num_quotes // 2 > MAX_ITEMS or commas > MAX_COMMAS:
            break
    return items + (num_quotes + 1) // 2, commas


def _quotes(piece: npt.NDArray[np.uint8], backslashes: int) -> tuple[npt.NDArray[np.intp], int]:
    """Return the places of the quotes that begin or end a string, and the number of backslashes at the end.

    Args:
        backslashes: their number right before the piece.
    """
    places = np.arange(len(piece))
    # The latest place up to each that has no backslash. Before the piece there is one, too.
    others = np.maximum.accumulate(np.where(piece == _BACKSLASH, -1 - backslashes, places))
    quotes = np.flatnonzero(piece == _QUOTE)
    before = np.where(quotes > 0, others[quotes - 1], -1 - backslashes)
    return quotes[(quotes - 1 - before) % 2 == 0], int(len(piece) - 1 - others[-1])
