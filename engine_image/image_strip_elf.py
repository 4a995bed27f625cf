"""Strips from shared libraries the parts that the loader never maps: symbols, debug information, section headers.

Published wheels carry these (a fifth of libtorch_cpu.so), and a slim base image has no `strip`. The ELF program headers
say which bytes of a file are mapped (System V ABI, "Program Loading"); all else goes. What follows a gap moves up
by whole pages, as file offsets and addresses must stay equal modulo the segment's alignment.

    python image_strip_elf.py /opt/inflight/lib/python3.11/site-packages
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

ELF64_LITTLE_ENDIAN = b"\x7fELF\x02\x01"
HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr
SEGMENT = struct.Struct("<IIQQQQQQ")  # Elf64_Phdr
PT_LOAD = 1
SMALLEST = 256 * 1024  # bytes; below this a file has nothing worth moving
# NVIDIA's licence allows its libraries to be passed on unchanged only, and they carry no symbol tables anyway.
UNTOUCHED = "nvidia"


@dataclass(frozen=True, slots=True)
class Segment:
    """An Elf64_Phdr: a range of the file and where it is mapped."""

    type: int
    flags: int
    offset: int
    vaddr: int
    paddr: int
    filesz: int
    memsz: int
    align: int

    @property
    def end(self) -> int:
        return self.offset + self.filesz


@dataclass(frozen=True, slots=True)
class Cut:
    """How a file shrinks: `kept` byte ranges in order, and the segments with their offsets in the new file."""

    kept: tuple[tuple[int, int], ...]
    segments: tuple[Segment, ...]

    @property
    def size(self) -> int:
        return sum(end - start for start, end in self.kept)


def plan_cut(segments: tuple[Segment, ...], headers_end: int) -> Cut:
    """Where to cut a file whose ELF and program headers end at byte `headers_end`."""
    kept: list[tuple[int, int]] = [(0, headers_end)]
    shifts: list[tuple[int, int]] = [(0, 0)]  # (from this old offset on, bytes moved up)
    shift = 0
    align = max((s.align for s in segments if s.type == PT_LOAD), default=1)
    for segment in sorted((s for s in segments if s.filesz), key=lambda s: s.offset):
        last_start, last_end = kept[-1]
        removed = max(0, segment.offset - last_end) // align * align
        if removed:
            shift += removed
            shifts.append((last_end + removed, shift))
            kept.append((last_end + removed, segment.end))
        else:
            kept[-1] = (last_start, max(last_end, segment.end))
    moved = tuple(
        replace(s, offset=s.offset - [by for start, by in shifts if start <= s.offset][-1]) if s.filesz else s
        for s in segments
    )
    return Cut(tuple(kept), moved)


def strip(path: Path) -> int:
    """Rewrites one library and returns the bytes saved; 0 for what is no 64-bit ELF file or has nothing to drop."""
    with path.open("rb") as source:
        head = source.read(HEADER.size)
        if len(head) < HEADER.size or not head.startswith(ELF64_LITTLE_ENDIAN):
            return 0
        fields = list(HEADER.unpack(head))
        table, entry_size, count = fields[5], fields[9], fields[10]
        if entry_size != SEGMENT.size:
            return 0
        source.seek(table)
        raw = source.read(entry_size * count)
        segments = tuple(Segment(*values) for values in SEGMENT.iter_unpack(raw))
        table_end = table + len(raw)
        if not any(s.type == PT_LOAD and s.offset <= table and table_end <= s.end for s in segments):
            return 0  # the loader reads this table through a mapping: unusual files stay as they are
        cut = plan_cut(segments, HEADER.size)
        saved = path.stat().st_size - cut.size
        if saved <= 0:
            return 0
        new = path.with_name(f".{path.name}.stripped")
        with new.open("wb") as target:
            for start, end in cut.kept:
                source.seek(start)
                _copy(source.fileno(), target.fileno(), start, end - start)
            # No section headers any more: offset, entry count and index of their names are 0.
            fields[6], fields[12], fields[13] = 0, 0, 0
            os.pwrite(target.fileno(), HEADER.pack(*fields), 0)
            segment_table = b"".join(SEGMENT.pack(*_fields(s)) for s in cut.segments)
            os.pwrite(target.fileno(), segment_table, _moved_table(cut, table))
    new.chmod(path.stat().st_mode)
    new.replace(path)
    return saved


def _fields(segment: Segment) -> Iterator[int]:
    return (getattr(segment, name) for name in Segment.__slots__)


def _moved_table(cut: Cut, table: int) -> int:
    """New offset of the program header table."""
    position = 0
    for start, end in cut.kept:
        if start <= table < end:
            return position + table - start
        position += end - start
    raise AssertionError("the program header table lies in a mapped segment")


def _copy(source: int, target: int, start: int, length: int) -> None:
    """Appends `length` bytes of `source` from `start` to `target` (file descriptors)."""
    while length:
        sent = os.sendfile(target, source, start, length)
        start, length = start + sent, length - sent


def strip_all(folder: Path) -> int:
    """Strips every shared library under `folder` that may be changed; returns the bytes saved."""
    libraries = (p for p in folder.rglob("*.so*") if p.is_file() and not p.is_symlink())
    return sum(
        strip(p) for p in libraries if p.stat().st_size >= SMALLEST and UNTOUCHED not in p.relative_to(folder).parts
    )


if __name__ == "__main__":
    print(f"stripped {strip_all(Path(sys.argv[1])) / 1e6:.0f} MB of symbols and debug information", flush=True)
