"""Stop strings in incremental text: text that may still become one is held back."""

from __future__ import annotations


class StopStrings:
    """Finds the earliest stop string in a growing text.

    Text that is the beginning of a stop string is held back until the next piece shows whether it becomes one, so the
    text let out never contains any part of the stop string (OpenAI: "the returned text will not contain the stop
    sequence"), however the text was cut into pieces.
    """

    __slots__ = ("_held", "_stops", "found")

    def __init__(self, stops: tuple[str, ...]) -> None:
        """`stops`: non-empty strings; with none of them every piece passes unchanged."""
        self._stops = stops
        self._held = ""
        self.found = False

    def push(self, piece: str) -> str:
        """The part of the text that may be released now. After `found` turns true no more is released."""
        if self.found:
            return ""
        if not self._stops:
            return piece
        text = self._held + piece
        end = _earliest(text, self._stops)
        if end >= 0:
            self.found = True
            self._held = ""
            return text[:end]
        keep = _possible_start(text, self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The text held back, when no more text arrives."""
        held, self._held = self._held, ""
        return held


def _earliest(text: str, stops: tuple[str, ...]) -> int:
    """Index of the first stop string in `text`, or -1.

    The one that ends first wins, since it is the first to be complete as text arrives; of two that end together the
    longer one, since it begins first.
    """
    best_end, best_start = len(text) + 1, -1
    for stop in stops:
        start = text.find(stop)
        if start >= 0 and (start + len(stop), start) < (best_end, best_start):
            best_end, best_start = start + len(stop), start
    return best_start


def _possible_start(text: str, stops: tuple[str, ...]) -> int:
    """Length of the longest end of `text` with which a stop string begins."""
    for length in range(min(len(text), max(map(len, stops)) - 1), 0, -1):
        if any(len(stop) > length and text.endswith(stop[:length]) for stop in stops):
            return length
    return 0
