"""Reads the rounds of a recording back, from gzip or from plain JSON lines."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from inflight_operator.reconcile.memory import Memory
from inflight_operator.reconcile.plan import Plan
from inflight_operator.reconcile.snapshot import Snapshot
from inflight_operator.recording.codec import CodecError, Read
from inflight_operator.recording.lines import KIND, VERSION, RoundCodec

_GZIP_MAGIC = b"\x1f\x8b"


class RecordingError(ValueError):
    """Not a recording, a damaged one, or one of another version. The message continues a sentence that names the
    file."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round of one service, as it was recorded.

    Attributes:
        line: in the file.
        service: `NAMESPACE/NAME`.
    """

    line: int
    service: str
    snapshot: Snapshot
    memory: Memory
    plan: Plan


class Recording:
    """One file. It may be growing still, or have been cut short when its operator was killed: the readable part is
    used.

    Attributes:
        started: when the file was begun, ISO 8601.
        cut_short: whether the file stops before its end; known once `rounds` was read through.
    """

    def __init__(self, path: Path) -> None:
        """
        Raises:
            OSError: the file cannot be read.
            RecordingError: it is no recording, or one that this version cannot repeat.
        """
        self._path = path
        self._codec = RoundCodec()
        self.cut_short = False
        first = next(self._lines(), None)
        if first is None:
            raise RecordingError("was cut short before its first line" if self.cut_short else "is empty")
        self.started = self._header(first)

    def rounds(self, services: Collection[str] = ()) -> Iterator[Round]:
        """All rounds in the order in which they were decided.

        Args:
            services: those to read; empty reads all.

        Raises:
            OSError: the file cannot be read.
            RecordingError: a line cannot be understood, or the file is damaged.
        """
        known: dict[str, Read] = {}
        for number, text in enumerate(self._lines(), start=1):
            if number == 1:
                continue
            try:
                line = json.loads(text)
                service = line["service"]
                if services and service not in services:
                    continue
                if line["whole"]:
                    known[service] = Read()
                yield Round(number, service, *self._codec.read(line, known[service]))
            except (CodecError, ValueError, KeyError, TypeError, RecursionError) as error:
                raise RecordingError(f"cannot be understood in line {number}: {error}") from error

    def _header(self, text: bytes) -> str:
        try:
            header: dict[str, Any] = json.loads(text)
            if header["recording"] != KIND:
                raise KeyError(KIND)
            program, types, started = header["version"], header["types"], str(header["started"])
        except (ValueError, KeyError, TypeError) as error:
            raise RecordingError("is no recording of inflight-operator: its first line is another") from error
        if program != VERSION:
            raise RecordingError(
                f"was recorded by version {program}, and this is version {VERSION}: replay it with the version that "
                "recorded it"
            )
        if types != self._codec.types:
            name, why = _first_difference(types, self._codec.types)
            raise RecordingError(f"was recorded by another build of version {program}: {name} {why}")
        return started

    def _lines(self) -> Iterator[bytes]:
        """Whole lines, the first included."""
        self.cut_short = False
        number = 0
        with self._path.open("rb") as file:
            compressed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            file.seek(0)
            stream = cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if compressed else file
            try:
                for number, line in enumerate(stream, start=1):  # noqa: B007 - named in the error below
                    if not line.endswith(b"\n"):
                        self.cut_short = True
                        return
                    yield line
            except EOFError:
                self.cut_short = True
            except (gzip.BadGzipFile, zlib.error) as error:
                raise RecordingError(f"is damaged after line {number}: {error}") from error


def _first_difference(theirs: dict[str, list[str]], ours: dict[str, list[str]]) -> tuple[str, str]:
    """The name of a type, and its difference."""
    for name in sorted({*theirs, *ours}):
        short, there, here = name.rpartition(".")[2], theirs.get(name, []), ours.get(name, [])
        if there != here:
            more, fewer = sorted({*there} - {*here}), sorted({*here} - {*there})
            said = [f"has {', '.join(more)} there"] * bool(more) + [f"has {', '.join(fewer)} here"] * bool(fewer)
            return short, " and ".join(said) or "has its fields in another order"
    return "the file", "is another"
