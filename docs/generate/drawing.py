"""Boxes and arrows as SVG: coordinates in grid units, straight arrows from border to border."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

UNIT = 10
"""Pixels of a grid unit."""

_FONT = "font-family='Roboto, Helvetica, Arial, sans-serif'"
_HEAD = (
    "<defs><marker id='head' viewBox='0 0 10 10' refX='9' refY='5' markerWidth='7' markerHeight='7' "
    "orient='auto-start-reverse'><path d='M0 0 10 5 0 10z' fill='#37474f'/></marker></defs>"
)
_LINE = 16


@dataclass(frozen=True)
class Box:
    """A box around its middle.

    Attributes:
        text: lines; the first is bold where there are several.
        frame: a dashed frame around other boxes, with its text at the top.
    """

    x: float
    y: float
    width: float
    height: float
    text: str
    fill: str = "#e8eaf6"
    frame: bool = False


@dataclass(frozen=True)
class Arrow:
    """From one box to another.

    Attributes:
        shift: moves the arrow sideways, so that two can run side by side.
        both: a head at each end.
        side: moves the label off the line.
    """

    start: str
    end: str
    label: str = ""
    shift: float = 0.0
    both: bool = False
    side: float = 0.0


@dataclass(frozen=True)
class Drawing:
    """A picture.

    Attributes:
        title: says what it shows, for people who cannot see it.
    """

    title: str
    width: float
    height: float
    boxes: dict[str, Box]
    arrows: Sequence[Arrow]

    def svg(self) -> str:
        """The file."""
        width, height = self.width * UNIT, self.height * UNIT
        frames = [_frame(box) for box in self.boxes.values() if box.frame]
        boxes = [_box(box) for box in self.boxes.values() if not box.frame]
        arrows = [_arrow(arrow, self.boxes[arrow.start], self.boxes[arrow.end]) for arrow in self.arrows]
        lines = [
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:g} {height:g}' width='{width:g}' "
            f"height='{height:g}' role='img'>",
            f"<title>{escape(self.title)}</title>",
            _HEAD,
            f"<rect width='{width:g}' height='{height:g}' fill='#ffffff'/>",
            *frames,
            *arrows,
            *boxes,
            "</svg>",
        ]
        return "\n".join(lines) + "\n"


def _text(x: float, y: float, line: str, *, size: int = 13, bold: bool = False, paper: bool = False) -> str:
    weight = " font-weight='bold'" if bold else ""
    halo = " paint-order='stroke' stroke='#ffffff' stroke-width='5'" if paper else ""
    return (
        f"<text x='{x:g}' y='{y:g}' {_FONT} font-size='{size}' text-anchor='middle' dominant-baseline='central' "
        f"fill='#212121'{weight}{halo}>{escape(line)}</text>"
    )


def _lines(box: Box, top: float) -> list[str]:
    lines = box.text.split("\n")
    return [
        _text(box.x * UNIT, top + index * _LINE, line, bold=index == 0 and (len(lines) > 1 or box.frame))
        for index, line in enumerate(lines)
    ]


def _rectangle(box: Box, style: str) -> str:
    x, y = (box.x - box.width / 2) * UNIT, (box.y - box.height / 2) * UNIT
    return f"<rect x='{x:g}' y='{y:g}' width='{box.width * UNIT:g}' height='{box.height * UNIT:g}' rx='6' {style}/>"


def _box(box: Box) -> str:
    middle = box.y * UNIT - box.text.count("\n") * _LINE / 2
    return "\n".join([_rectangle(box, f"fill='{box.fill}' stroke='#3949ab'"), *_lines(box, middle)])


def _frame(box: Box) -> str:
    top = (box.y - box.height / 2) * UNIT + 14
    style = "fill='#fafafa' stroke='#9e9e9e' stroke-dasharray='5 4'"
    return "\n".join([_rectangle(box, style), *_lines(box, top)])


def _arrow(arrow: Arrow, start: Box, end: Box) -> str:
    dx, dy = end.x - start.x, end.y - start.y
    upright = abs(dy) > abs(dx)
    move = (arrow.shift, 0.0) if upright else (0.0, arrow.shift)
    (x1, y1), (x2, y2) = _border(start, dx, dy, move), _border(end, -dx, -dy, move)
    tail = " marker-start='url(#head)'" if arrow.both else ""
    parts = [
        f"<line x1='{x1:g}' y1='{y1:g}' x2='{x2:g}' y2='{y2:g}' stroke='#37474f' stroke-width='1.5' "
        f"marker-end='url(#head)'{tail}/>"
    ]
    lines = arrow.label.split("\n") if arrow.label else []
    x, y = (x1 + x2) / 2 + (arrow.side * UNIT if upright else 0), (y1 + y2) / 2 + (0 if upright else arrow.side * UNIT)
    parts += [
        _text(x, y + (index - (len(lines) - 1) / 2) * _LINE, line, size=12, paper=True)
        for index, line in enumerate(lines)
    ]
    return "\n".join(parts)


def _border(box: Box, dx: float, dy: float, move: tuple[float, float]) -> tuple[float, float]:
    """Where a line from the middle of a box, moved, leaves the box, in pixels."""
    scale = min(
        box.width / 2 / abs(dx) if dx else float("inf"),
        box.height / 2 / abs(dy) if dy else float("inf"),
    )
    return round((box.x + dx * scale + move[0]) * UNIT, 1), round((box.y + dy * scale + move[1]) * UNIT, 1)
