"""The conditions and prospects of a service, as `kubectl inflight why` prints them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Static

from inflight_kubectl.access.resources import Service
from inflight_kubectl.output import Problem
from inflight_kubectl.top.widgets import clock, title_line
from inflight_kubectl.why.report import explain
from inflight_kubectl.why.text import rendered

if TYPE_CHECKING:
    from inflight_kubectl.top.app import TopApp


class WhyScreen(Screen[None]):
    """The explanation at one moment; the arrow keys scroll it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "app.pop_screen", "Back", key_display="Esc")]

    def __init__(self, service: Service) -> None:
        super().__init__()
        self._service = service

    def compose(self) -> ComposeResult:
        """Title, text, keys."""
        yield Static(classes="title")
        with VerticalScroll():
            yield Static(id="why")
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        """Reads the pods and their events."""
        now = datetime.now(UTC)
        title = title_line(["why", f"{self._service.namespace}/{self._service.name}"], clock(now), self.size.width)
        self.query_one(".title", Static).update(title)
        self.query_one("#why", Static).update(rendered(explain(self._service, [], [], now)))
        self.query_one(VerticalScroll).focus()
        self.run_worker(self._read, thread=True, exit_on_error=False)

    def _read(self) -> None:
        source = cast("TopApp", self.app).source
        try:
            pods = source.pods(self._service)
            events, gateway = source.events(self._service, pods), source.gateway(self._service)
            tiers = source.tiers(self._service, pods)
            report = explain(self._service, pods, events, datetime.now(UTC), gateway, tiers)
        except Problem:
            return  # the first text stays: it depends only on the service
        self.app.call_from_thread(self.query_one("#why", Static).update, rendered(report))
