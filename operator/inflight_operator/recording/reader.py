"""Reads the rounds of a recording back, and compares two plans field by field."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from inflight_base.recording import CHUNK, RecordingFormatError, parts_of
from inflight_operator.reconcile.memory import Memory
from inflight_operator.reconcile.plan import Plan
from inflight_operator.reconcile.snapshot import Snapshot
from inflight_operator.recording.codec import KIND, VERSION, CodecError, RoundCodec

_GZIP_MAGIC = b"\x1f\x8b"
"""First bytes of recordings in the earlier format: lines of JSON, with gzip."""


class RecordingError(ValueError):
    """Not a recording, a damaged one, or one of another version. The message continues a sentence that names the
    file."""


@dataclass(frozen=True, slots=True)
class Round:
    """A recorded round of one service.

    Attributes:
        number: number in the file, from 1.
        service: `NAMESPACE/NAME`.
    """

    number: int
    service: str
    snapshot: Snapshot
    memory: Memory
    plan: Plan


class Recording:
    """A recording in one file. The file may still grow, or may have been cut short when its operator was killed: the
    readable part is used.

    Attributes:
        started: time of the beginning of the file, ISO 8601.
        cut_short: True if the file stops before its end; known once `rounds` was read through.
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
        first = next(self._parts(), None)
        if first is None:
            raise RecordingError("was cut short before its first line" if path.stat().st_size else "is empty")
        self.started = self._header(first[1])

    def rounds(self, services: Collection[str] = ()) -> Iterator[Round]:
        """Yields all rounds in the order in which they were decided.

        Args:
            services: services to read; empty reads all.

        Raises:
            OSError: the file cannot be read.
            RecordingError: a round cannot be understood, or the file is damaged.
        """
        for number, (service, message) in enumerate(self._parts()):
            if not number or (services and service not in services):
                continue
            try:
                yield Round(number, service, *self._codec.decode(message))
            except (CodecError, RecursionError) as error:
                raise RecordingError(f"cannot be understood in round {number}: {error}") from error

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
        difference = _first_difference(types, self._codec)
        if difference is not None:
            raise RecordingError(f"was recorded by another build of version {program}: {difference}")
        return started

    def _parts(self) -> Iterator[tuple[str, bytes]]:
        """Yields the header, then the rounds that are whole."""
        self.cut_short = False
        with self._path.open("rb") as file:
            if file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC:
                raise RecordingError(
                    "is of the format of an earlier version: replay it with the version that recorded it"
                )
            file.seek(0)
            try:
                yield from parts_of(iter(lambda: file.read(CHUNK), b""))
            except EOFError:
                self.cut_short = True
            except RecordingFormatError as error:
                raise RecordingError(str(error)) from error


def _first_difference(theirs: dict[str, list[str]], codec: RoundCodec) -> str | None:
    """Returns the first type that the recording has otherwise, and its difference; None if it can be read. It may lack
    fields with defaults, and types that only these have: an earlier build decided without them."""
    for name, there in sorted(theirs.items()):
        short, here = name.rpartition(".")[2], codec.types.get(name, [])
        more, fewer = sorted({*there} - {*here}), sorted({*here} - {*there} - codec.optional.get(name, set()))
        said = [f"has {', '.join(more)} there"] * bool(more) + [f"has {', '.join(fewer)} here"] * bool(fewer)
        if said:
            return f"{short} {' and '.join(said)}"
        if [field for field in here if field in there] != there:
            return f"{short} has its fields in another order"
    return None


MAX_TEXT = 160
"""Maximum characters of a value in a difference."""


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


_MISSING = _Missing()


@dataclass(frozen=True, slots=True)
class Difference:
    """Attributes:
    where: path to the field, as `memory.scaling.lowest[2]`.
    was, now: the two values.
    """

    where: str
    was: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.where}: recorded {_text(self.was)}, now {_text(self.now)}"


def differences(was: Any, now: Any, where: str = "") -> Iterator[Difference]:
    """Yields the innermost values that differ. NaN equals itself."""
    if was is now or was == now or (was != was and now != now):
        return
    if is_dataclass(was) and type(was) is type(now):
        for field in fields(was):
            name = f"{where}.{field.name}" if where else field.name
            yield from differences(getattr(was, field.name), getattr(now, field.name), name)
    elif isinstance(was, Mapping) and isinstance(now, Mapping):
        for key in [*was, *(key for key in now if key not in was)]:
            yield from differences(was.get(key, _MISSING), now.get(key, _MISSING), f"{where}[{key!r}]")
    elif _is_list(was) and _is_list(now):
        for index, (one, other) in enumerate(zip_longest(was, now, fillvalue=_MISSING)):
            yield from differences(one, other, f"{where}[{index}]")
    else:
        yield Difference(where, was, now)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _text(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"
