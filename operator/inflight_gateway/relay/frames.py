"""Incremental parser of an engine's progress frames (docs/engine.md, header `x-inflight-progress`).

A frame ends with an empty line. Its lines that begin with `:` are server-sent-event comments with the frame's metadata;
the others are for the client. Lines end with a line feed: the engine writes no other.
"""

from __future__ import annotations

from typing import NamedTuple

MAX_FRAME_BYTES = 64 * 2**20
"""Most bytes of a frame; the largest frame is a whole answer with log-probabilities (about 1.7 kB a token)."""

_END = b"\n\n"


class Frame(NamedTuple):
    """A frame. Attributes: notes: the comment lines without their colon. data: the other lines as the client gets them,
    with the empty line; empty: there are none."""

    notes: tuple[bytes, ...]
    data: bytes


class FrameTooLong(ValueError):
    """A frame does not end within `MAX_FRAME_BYTES`."""


class FrameParser:
    """Parser of one response. It keeps the bytes of an incomplete frame."""

    __slots__ = ("_begun", "_searched")

    def __init__(self) -> None:
        self._begun = bytearray()
        # Bytes of the incomplete frame already searched for its end.
        self._searched = 0

    def feed(self, data: bytes) -> list[Frame]:
        """Returns the frames that `data` completes.

        Raises:
            FrameTooLong: no more data may be fed.
        """
        if not self._begun and data.endswith(_END):  # the usual case: one write of the engine is one read here
            return [_frame(each) for each in data[: -len(_END)].split(_END)]
        begun = self._begun
        begun += data
        end = begun.rfind(_END, self._searched)
        if end < 0:
            if len(begun) > MAX_FRAME_BYTES:
                raise FrameTooLong
            self._searched = max(0, len(begun) - 1)
            return []
        complete = bytes(begun[:end])
        del begun[: end + len(_END)]
        self._searched = max(0, len(begun) - 1)
        return [_frame(each) for each in complete.split(_END)]


def _frame(text: bytes) -> Frame:
    if not text.startswith(b":"):
        if b"\n:" not in text:
            return Frame((), text + _END if text else b"")
    elif b"\n" not in text:
        return Frame((text[1:],), b"")
    notes = []
    data = []
    for line in text.split(b"\n"):
        if line.startswith(b":"):
            notes.append(line[1:])
        elif line:
            data.append(line)
    return Frame(tuple(notes), b"\n".join(data) + _END if data else b"")
