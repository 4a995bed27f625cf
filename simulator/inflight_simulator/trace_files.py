"""Reads ARRIVALS in three formats, detected by their first line."""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TextIO

import msgspec

from inflight_simulator.arrivals import SHARED_BLOCK_TOKENS, Arrival
from inflight_simulator.errors import InputError

FORMATS = """\
ARRIVALS is one of
  CSV                arrival_s,prompt_tokens,output_tokens[,class,tenant,priority]
  Azure's CSV        TIMESTAMP,ContextTokens,GeneratedTokens
  Mooncake's JSONL   {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}
A prompt of 0 tokens counts as one of 1. The file may be gzipped."""

_TABLE = ("arrival_s", "prompt_tokens", "output_tokens")
_TABLE_OPTIONAL = ("class", "tenant", "priority")
_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_GZIP = b"\x1f\x8b"
_LARGEST_ID = 2**31 - 1
MOST_TOKENS = 10**8
MOST_SECONDS = 1e10
"""A time of day in seconds since 1970 is below it; above it a step's time is lost in rounding."""

_Cells = list[str]
_Parse = Callable[[_Cells], Arrival]


def read_arrivals(path: Path) -> list[Arrival]:
    """Reads all requests of a file, in the file's order; at least one.

    Raises:
        InputError: the file cannot be read, or a line does not match its format.
    """
    line = 1
    arrivals: list[Arrival] = []
    try:
        # All at once: it may be a pipe, which cannot go back to its first line.
        parse, rows = _format_of(io.StringIO(arrivals_text(path), newline=""))
        for number, cells in rows:
            line = number
            arrivals.append(parse(cells))
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a text file in UTF-8") from error
    except (ValueError, csv.Error) as error:
        raise InputError(f"{path}, line {line}: {error}") from error
    if not arrivals:
        raise InputError(f"{path}: there are no requests in it")
    return arrivals


def arrivals_text(path: Path) -> str:
    """Returns the text of the file, uncompressed if it is gzipped.

    Raises:
        OSError, EOFError, zlib.error, UnicodeDecodeError: it cannot be read.
    """
    content = path.read_bytes()
    if content.startswith(_GZIP):
        content = gzip.decompress(content)
    return content.decode("utf-8-sig")


def _format_of(file: TextIO) -> tuple[_Parse, Iterator[tuple[int, _Cells]]]:
    """Returns the parser of a row, and the rows with their line numbers."""
    begin, first = 0, file.readline()
    while first and not first.strip():
        begin += 1
        first = file.readline()
    if first.lstrip().startswith("{"):
        file.seek(0)
        return _mooncake, ((line, [text]) for line, text in enumerate(file, 1) if text.strip())
    header = [name.strip() for name in next(csv.reader([first]), [])]
    if "arrival_s" in header:
        parse = _table(header)
    elif "ContextTokens" in header:
        parse = _azure(header)
    else:
        raise ValueError(f"{first.strip()[:60]!r} is not the start of a known format\n{FORMATS}")
    reader = csv.reader(file)
    return parse, ((begin + 1 + reader.line_num, cells) for cells in reader if any(map(str.strip, cells)))


def _table(header: _Cells) -> _Parse:
    named = _by_name(header, _TABLE, _TABLE_OPTIONAL)

    def parse(cells: _Cells) -> Arrival:
        row = named(cells)
        return Arrival(
            arrival_s=_seconds("arrival_s", row["arrival_s"]),
            prompt_tokens=max(1, _count("prompt_tokens", row["prompt_tokens"], 0)),
            output_tokens=_count("output_tokens", row["output_tokens"], 1),
            service_class=row.get("class", ""),
            tenant=row.get("tenant", ""),
            priority=_integer("priority", row.get("priority") or "0"),
        )

    return parse


def _azure(header: _Cells) -> _Parse:
    """The Azure Public Dataset's LLM inference traces (2023 and 2024): times of day, made relative to the first."""
    named = _by_name(header, _AZURE, ())
    start: datetime | None = None

    def parse(cells: _Cells) -> Arrival:
        nonlocal start
        row = named(cells)
        time = _time("TIMESTAMP", row["TIMESTAMP"])
        if start is None:
            start = time
        return Arrival(
            arrival_s=_seconds("TIMESTAMP, from the first,", str((time - start).total_seconds())),
            prompt_tokens=max(1, _count("ContextTokens", row["ContextTokens"], 0)),
            output_tokens=_count("GeneratedTokens", row["GeneratedTokens"], 1),
        )

    return parse


class _MooncakeLine(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


def _mooncake(cells: _Cells) -> Arrival:
    """A line of Mooncake's traces (Qin et al., FAST 2025)."""
    row = msgspec.json.decode(cells[0], type=_MooncakeLine)
    prompt_tokens = max(1, _count("input_length", row.input_length, 0))
    shared = len(row.hash_ids) * SHARED_BLOCK_TOKENS
    if row.hash_ids and not prompt_tokens <= shared < prompt_tokens + SHARED_BLOCK_TOKENS:
        raise ValueError(
            f"{len(row.hash_ids)} hash_ids for an input_length of {row.input_length}: "
            f"there must be one for each {SHARED_BLOCK_TOKENS} tokens begun"
        )
    if not all(0 <= hash_id <= _LARGEST_ID for hash_id in row.hash_ids):
        raise ValueError(f"hash_ids must be between 0 and {_LARGEST_ID}")
    return Arrival(
        arrival_s=_seconds("timestamp", row.timestamp / 1000),
        prompt_tokens=prompt_tokens,
        output_tokens=_count("output_length", row.output_length, 1),
        hash_ids=row.hash_ids,
    )


def _by_name(header: _Cells, required: Sequence[str], optional: Sequence[str]) -> Callable[[_Cells], dict[str, str]]:
    columns = ",".join(required) + (f"[,{','.join(optional)}]" if optional else "")
    for name in required:
        if name not in header:
            raise ValueError(f"there is no column {name}; the columns are {columns}")
    for name in header:
        if name not in (*required, *optional):
            raise ValueError(f"column {name!r} is unknown; the columns are {columns}")
        if header.count(name) > 1:
            raise ValueError(f"column {name} is there twice")

    def named(cells: _Cells) -> dict[str, str]:
        if len(cells) != len(header):
            raise ValueError(f"{len(cells)} values for the {len(header)} columns {','.join(header)}")
        return {name: cell.strip() for name, cell in zip(header, cells, strict=True)}

    return named


def _seconds(name: str, given: str | float) -> float:
    try:
        value = float(given)
    except ValueError:
        raise ValueError(f"{name} {given!r} is not a number") from None
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be 0 or more, not {given}")
    if value > MOST_SECONDS:
        raise ValueError(f"{name} must be at most {MOST_SECONDS:g} seconds, not {value:g}")
    return value


def _time(name: str, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=None)
    except ValueError:
        raise ValueError(f"{name} {text!r} is not a time like 2023-11-16 18:15:46.6805900") from None


def _count(name: str, given: str | int, least: int) -> int:
    value = _integer(name, given)
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")
    if value > MOST_TOKENS:
        raise ValueError(f"{name} must be at most {MOST_TOKENS}, not {value}")
    return value


def _integer(name: str, given: str | int) -> int:
    try:
        return int(given)
    except ValueError:
        raise ValueError(f"{name} {given!r} is not an integer") from None
