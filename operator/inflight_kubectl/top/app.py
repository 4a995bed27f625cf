"""The application: follows the services, and passes each new view to the screens."""

from __future__ import annotations

from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.message import Message

from inflight_kubectl.feed import View
from inflight_kubectl.top.services_screen import ServicesScreen
from inflight_kubectl.top.source import Source
from inflight_kubectl.top.widgets import LiveScreen


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
        from inflight_kubectl.top.help_screen import HelpScreen

        if not isinstance(self.screen, HelpScreen):
            self.push_screen(HelpScreen())

    def retry(self) -> None:
        """Retries an unreachable API server at once."""
        self._feed.retry()
