"""The application: follows the services, and passes each new view to the screens."""

from __future__ import annotations

from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Static

from inflight_kubectl.engines.feed import View
from inflight_kubectl.top.services_screen import ServicesScreen
from inflight_kubectl.top.source import Source
from inflight_kubectl.top.widgets import LiveScreen

HELP = """[b]Keys[/b]
  ↑ ↓  j k        move            g G   first, last
  Enter           open a service  Esc   back
  /               filter: words in name, namespace, state or model
  s   r           sort by the next column; reverse the order
  Tab             from pods to decisions and back
  w               why: the conditions of the service in full
  Ctrl+R          ask an API server that is away again
  ?   q           this help; quit

[b]Columns[/b]
  READY    replicas ready/ordered; !N: N of them are blocked
  TTFT     p95 of the time to first token; ! over the target
  TPOT     p95 of the time per output token; ! over the target
  LIMITS   max_num_seqs/max_num_batched_tokens in force
  LAST     age of the last decision

Services show what the operator wrote to their status, at least
once a minute while figures move. Pods are read from the engines."""


class HelpScreen(ModalScreen[None]):
    """Keys and columns; any of Esc, q, ? closes it."""

    CSS = """
    HelpScreen { align: center middle; }
    HelpScreen > Static {
        width: 72; height: auto; max-height: 100%; padding: 0 2; border: round $primary; background: $surface;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,h,enter", "app.pop_screen", "Close")]

    def compose(self) -> ComposeResult:
        """The text in a box."""
        yield Static(HELP)


class TopApp(App[None]):
    """`kubectl inflight top`.

    Args:
        interval: seconds between two updates of ages, and of the pods' figures.
    """

    ENABLE_COMMAND_PALETTE = False
    TITLE = "inflight"
    CSS = """
    Screen { layers: base; }
    .title { height: 1; background: $primary-darken-2; color: $text; }
    .banner { height: auto; max-height: 3; background: $error; color: $text; display: none; padding: 0 1; }
    .banner.shown { display: block; }
    .empty { height: 1fr; content-align: center middle; color: $text-muted; display: none; padding: 0 4; }
    .empty.shown { display: block; }
    DataTable { height: 1fr; scrollbar-size-vertical: 1; scrollbar-size-horizontal: 0; }
    DataTable > .datatable--header { text-style: bold; }
    DataTable > .datatable--cursor, DataTable:focus > .datatable--cursor {
        background: $primary-darken-3; color: $text; text-style: bold;
    }
    .detail { height: auto; max-height: 6; border-top: solid $primary-darken-1; }
    .filter { height: 1; border: none; padding: 0 1; display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", "Quit", show=False, priority=True),
        Binding("question_mark,h", "help", "Help", key_display="?"),
    ]

    class Changed(Message):
        """Message: the services or the reachability of the API server changed."""

        def __init__(self, view: View) -> None:
            self.view = view
            super().__init__()

    def __init__(self, source: Source, interval: float) -> None:
        super().__init__()
        self.source = source
        self.interval = interval
        self.view = View()
        self._feed = source.follow(self._changed)

    def _changed(self, view: View) -> None:
        """Called in the feed's thread."""
        self.post_message(self.Changed(view))

    def on_mount(self) -> None:
        """Shows the services."""
        self.push_screen(ServicesScreen())
        self._feed.start()

    def on_unmount(self) -> None:
        """Ends the feed."""
        self._feed.stop()

    def on_top_app_changed(self, message: Changed) -> None:
        """Passes the view to the screens; a table below another screen is drawn when that is closed."""
        self.view = message.view
        for screen in self.screen_stack:
            if isinstance(screen, LiveScreen):
                screen.view_changed()

    def action_help(self) -> None:
        """All keys."""
        if not isinstance(self.screen, HelpScreen):
            self.push_screen(HelpScreen())

    def retry(self) -> None:
        """Retries an unreachable API server at once."""
        self._feed.retry()
