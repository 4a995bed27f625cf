"""Incremental parser of an engine's progress frames (docs/engine.md, header `x-inflight-progress`).

A frame ends with an empty line. Its lines that begin with `:` are server-sent-event comments with the frame's metadata;
the others are for the client. Lines end with a line feed, but for the empty lines between several events of one frame,
which are a carriage return and a line feed.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_FRAME_BYTES = 16 * 2**20
"""Most bytes of a frame. Whole answers that are longer pass as they come: with log-probabilities a token takes about
1.7 kB, and an embedding up to 80 kB. For streams, the owner of the attempt has a smaller bound."""

MAX_LINES = 2**16
"""Most lines in the frames of a read: a comment takes this process much longer than its engine."""

_MAX_NOTES_BYTES = 4096
"""Most bytes of the notes before a long whole answer: the end of each choice is in a frame before it."""

MAX_FRAMES = 2048
"""Most frames in one read: those of a minute, where engine or relay stood still. Frames of a few bytes each would take
this process much longer than the engine."""

DONE = b"data: [DONE]\n\n"
"""Data of the last frame of a stream."""

ONE_TOKEN = re.compile(rb":t (\d{1,4}) (\d{1,10})\n((?:event: [^\n]*\n)?data: \{[^\n]*\n\n)")
"""A whole frame of one token, the usual one, and never `DONE`, which ends the stream. Groups: index of the choice, id
of the token, data."""

_WHOLE_BEGUN = re.compile(rb"((?::[^\n]*\n)+)data: ")

_END = b"\n\n"
_WITHIN = b"\n\r\n"
"""End of an event within a frame."""


class Frame(NamedTuple):
    """A frame. Attributes: notes: the comment lines without their colon. data: the other lines as the client gets them,
    with the empty line; empty: there are none."""

    notes: tuple[bytes, ...]
    data: bytes


class FrameTooLong(ValueError):
    """A frame is longer than `MAX_FRAME_BYTES`, or a read has more than `MAX_FRAMES` or `MAX_LINES`."""


class FrameParser:
    """Parser of one response. It keeps the bytes of an incomplete frame."""

    __slots__ = ("_begun", "_searched")

    def __init__(self) -> None:
        self._begun = bytearray()
        # Bytes of the incomplete frame already searched for its end.
        self._searched = 0

    @property
    def size(self) -> int:
        """Bytes of the incomplete frame."""
        return len(self._begun)

    def feed(self, data: bytes) -> list[Frame]:
        """Returns the frames that `data` completes.

        Raises:
            FrameTooLong: no more data may be fed.
        """
        if data.count(_END) > MAX_FRAMES:
            raise FrameTooLong
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
        if complete.count(b"\n") > MAX_LINES:
            raise FrameTooLong
        return [_frame(each) for each in complete.split(_END)]

    def begun(self) -> Frame | None:
        """Returns the incomplete frame, whose data are one line, as far as it has come: the line without `data: `.
        None: its notes are not complete, or it has none."""
        found = _WHOLE_BEGUN.match(self._begun, 0, _MAX_NOTES_BYTES)
        if found is None:
            return None
        notes = tuple(line[1:] for line in found[1].splitlines())
        return Frame(notes, bytes(self._begun[found.end() :]))


def _frame(text: bytes) -> Frame:
    if not text.startswith(b":"):
        if b"\n:" not in text:
            return Frame((), text.replace(_WITHIN, _END) + _END if text else b"")
    elif b"\n" not in text:
        return Frame((text[1:],), b"")
    notes = []
    data = []
    for line in text.split(b"\n"):
        if line.startswith(b":"):
            notes.append(line[1:])
        elif line:
            data.append(line)
    return Frame(tuple(notes), b"\n".join(data).replace(_WITHIN, _END) + _END if data else b"")
