"""The fenced blocks of code in a page of the documentation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tools.localcluster.layout import REPOSITORY

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
_NOTE = re.compile(r"<!-- test: (.*) -->\n$")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        page: path of its file below the repository.
        line: number of its first fence, from 1.
        note: of a comment `<!-- test: NOTE -->` on the line before it, else empty.
    """

    page: str
    line: int
    language: str
    text: str
    note: str

    @property
    def where(self) -> str:
        """Page and line."""
        return f"{self.page}:{self.line}"


def blocks_of(path: Path) -> list[Block]:
    """The blocks of a page, in order, without the page's indentation."""
    content = path.read_text()
    found = []
    for match in _FENCE.finditer(content):
        before = content[: match.start()]
        note = _NOTE.search(before)
        indent = len(match["indent"])
        text = "".join(line[indent:] for line in match["text"].splitlines(keepends=True))
        name = str(path.relative_to(REPOSITORY))
        found.append(Block(name, before.count("\n") + 1, match["language"], text, note[1] if note else ""))
    return found
