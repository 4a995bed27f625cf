"""Parts that both screens use: their base class, title line, banner, and a table that keeps its cursor."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar, cast

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.screen import Screen
from textual.widgets import DataTable, Static

from inflight_kubectl.engines.feed import View
from inflight_kubectl.output import age
from inflight_kubectl.top.rows import Cell, Column
from inflight_kubectl.top.summary import STYLES

if TYPE_CHECKING:
    from inflight_kubectl.top.app import TopApp


class LiveScreen(Screen[None]):
    """A screen that is drawn again when the application's view, the interval or its own size changes."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+r", "retry", show=False)]

    @property
    def top(self) -> TopApp:
        """The application, with its own type."""
        return cast("TopApp", self.app)

    def view_changed(self) -> None:
        """Draws the application's current view."""
        raise NotImplementedError

    def on_resize(self, event: events.Resize) -> None:
        """Chooses the columns that fit."""
        self.call_after_refresh(self.view_changed)

    def on_screen_resume(self) -> None:
        """Draws changes from while another screen was active."""
        self.view_changed()

    def action_retry(self) -> None:
        """Retries an unreachable API server."""
        self.top.retry()


class Grid(DataTable[Text]):
    """A table whose rows are replaced as a whole; the cursor stays on its row's key, or at its position if that key was
    removed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "cursor_down", show=False),
        Binding("k", "cursor_up", show=False),
        Binding("g", "scroll_top", show=False),
        Binding("G", "scroll_bottom", show=False),
    ]

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, cursor_type="row", cursor_foreground_priority="renderable", cell_padding=0)
        self._shown: list[Column] = []
        self._rows: dict[str, list[Cell]] = {}

    @property
    def keys(self) -> list[str]:
        """Keys of the rows, from the top."""
        return list(self._rows)

    @property
    def current(self) -> str | None:
        """Key of the row under the cursor; None without rows."""
        keys = self.keys
        return keys[self.cursor_row] if 0 <= self.cursor_row < len(keys) else None

    def fill(self, shown: list[Column], rows: dict[str, list[Cell]]) -> None:
        """Shows `rows`, by key. If keys and columns are unchanged, only changed cells are drawn."""
        if shown == self._shown and list(rows) == list(self._rows):
            for place, (key, cells) in enumerate(rows.items()):
                before = self._rows[key]
                for index, cell in enumerate(cells):
                    if cell != before[index]:
                        where = Coordinate(place, index)
                        self.update_cell_at(where, _text(cell, shown[index], index))
            self._rows = rows
            return
        current, place, top = self.current, self.cursor_row, self.scroll_offset.y
        keys = list(rows)
        self.clear(columns=shown != self._shown)
        if shown != self._shown:
            for index, column in enumerate(shown):
                self.add_column(_text(Cell(column.name), column, index), width=column.width + (index > 0))
        for key, cells in rows.items():
            self.add_row(*(_text(cell, shown[index], index) for index, cell in enumerate(cells)), key=key)
        self._shown, self._rows = shown, rows
        if keys:
            place = keys.index(current) if current in rows else min(place, len(keys) - 1)
            self.move_cursor(row=max(0, place), animate=False, scroll=False)
            self.scroll_to(y=top, animate=False, force=True)
            self.call_after_refresh(self._scroll_cursor_into_view)


def _text(cell: Cell, column: Column, index: int) -> Text:
    """Returns a cell of fixed width, with a space before it unless it is the first."""
    padded = cell.text.rjust(column.width) if column.right else cell.text.ljust(column.width)
    return Text((" " if index else "") + padded, style=STYLES[cell.tone], no_wrap=True)


class ServiceGrid(Grid):
    """The table whose rows can be opened."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "Open", key_display="Enter")]


class Banner(Static):
    """Warns that the shown data is stale; hidden while it is current."""

    def __init__(self) -> None:
        super().__init__(classes="banner", markup=False)

    def set_text(self, sentence: str | None) -> None:
        """Shows the sentence; hides the banner for None."""
        self.set_class(sentence is not None, "shown")
        if sentence is not None:
            self.update(sentence)


def away(view: View, now: datetime) -> str | None:
    """Returns the text of the banner while the API server does not respond."""
    if view.problem is None:
        return None
    if view.at is None:
        return f"{view.problem}. Trying again"
    return f"{view.problem}. Shown as of {clock(view.at)}, {age(view.at, now)} ago; trying again"


def clock(moment: datetime) -> str:
    """Returns the local time of day."""
    return moment.astimezone().strftime("%H:%M:%S")


def title_line(parts: Sequence[str], right: str, width: int) -> Text:
    """Returns a line: parts from the left, cut where they do not fit, and `right` at the right."""
    left = " " + "  ".join(parts)
    room = width - len(right) - 2
    if len(left) > room:
        left = f"{left[: max(0, room - 1)]}…"
    return Text(left.ljust(room) + f" {right} ", style="bold", no_wrap=True)
