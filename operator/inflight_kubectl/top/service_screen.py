"""The view of one service: its pods with their own figures, and its decisions."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import ClassVar

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.widgets import Footer, Static

from inflight_kubectl.access.pods import Pod
from inflight_kubectl.access.resources import Queue, Service
from inflight_kubectl.engines.engine_metrics import Figures
from inflight_kubectl.output import age, described
from inflight_kubectl.top.rows import Cell, against, pod_cells, pod_columns, replicas, share
from inflight_kubectl.top.summary import STYLES
from inflight_kubectl.top.widgets import Banner, Grid, LiveScreen, away, clock, title_line


class ServiceScreen(LiveScreen):
    """Keeps the last known state when its service is deleted.

    Args:
        service: its current state.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "Back", key_display="Esc"),
        Binding("tab", "app.focus_next", "Pods/decisions", key_display="Tab"),
        Binding("w", "why", "Why"),
    ]
    CSS = """
    ServiceScreen .head { height: auto; max-height: 7; padding: 0 1; }
    ServiceScreen Grid { height: auto; max-height: 50%; }
    ServiceScreen .decisions { height: 1fr; border-top: solid $primary-darken-1; scrollbar-size-vertical: 1; }
    ServiceScreen .decisions:focus { border-top: solid $accent; }
    """

    class Read(Message):
        """The result of reading the pods."""

        def __init__(self, pods: list[Pod] | None, figures: dict[str, Figures], problem: str | None) -> None:
            self.pods, self.figures, self.problem = pods, figures, problem
            super().__init__()

    def __init__(self, service: Service) -> None:
        super().__init__()
        self._service = service
        self._gone: datetime | None = None
        self._pods: list[Pod] = []
        self._figures: dict[str, Figures] = {}
        self._problem: str | None = None
        self._done = threading.Event()

    def compose(self) -> ComposeResult:
        """Title, banner, facts, pods, decisions, keys."""
        yield Static(classes="title")
        yield Banner()
        yield Static(classes="head")
        yield Grid(id="pods")
        with VerticalScroll(classes="decisions"):
            yield Static(id="history")
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        """Starts reading the pods."""
        self.set_interval(self.top.interval, self.draw)
        self.query_one(Grid).focus()
        self.draw()
        self.run_worker(self._read, thread=True, exclusive=True, exit_on_error=False)

    def on_unmount(self) -> None:
        """Stops reading; a read in flight completes."""
        self._done.set()

    def _read(self) -> None:
        reader = self.top.source.reader()
        try:
            while not self._done.is_set():
                try:
                    pods = self.top.source.pods(self._service)
                    # Pods are shown before their metrics: a port-forward may take a while.
                    self.post_message(self.Read(pods, self._figures, None))
                    self.post_message(self.Read(pods, reader.read(pods), None))
                except Exception as error:  # any error is shown on the screen, which continues
                    self.post_message(self.Read(None, {}, described(error)))
                self._done.wait(self.top.interval)
        finally:
            reader.close()

    def on_service_screen_read(self, message: Read) -> None:
        """Draws the read data; without a response the old pods stay."""
        self._problem = message.problem
        if message.pods is not None:
            self._pods, self._figures = message.pods, message.figures
        self.draw()

    def view_changed(self) -> None:
        """Takes the newest state of the service."""
        view = self.top.view
        found = next((one for one in view.services if one.key == self._service.key), None)
        if found is not None:
            self._service, self._gone = found, None
        elif view.problem is None and view.at is not None and self._gone is None:
            self._gone = view.at
        self.draw()

    def draw(self) -> None:
        """Draws all parts."""
        if not self.is_mounted or self.size.width == 0:
            return
        service, now = self._service, datetime.now(UTC)
        parts = [f"{service.namespace}/{service.name}", service.model]
        self.query_one(".title", Static).update(title_line(parts, clock(now), self.size.width))
        self.query_one(Banner).set_text(self._trouble(now))
        self.query_one(".head", Static).update(head(service, self._figures, now))
        shown = pod_columns(self.size.width - 1)
        rows = {pod.uid: pod_cells(service, pod, self._figures.get(pod.name), shown, now) for pod in self._pods}
        self.query_one(Grid).fill(shown, rows)
        self.query_one("#history", Static).update(history(service, now))

    def _trouble(self, now: datetime) -> str | None:
        if self._gone is not None:
            return f"{self._service.name} was deleted at {clock(self._gone)}. Shown as last seen; Esc goes back"
        silent = [one for one in self._figures.values() if one.problem is not None]
        figures = f"no figures of {len(silent)} of {len(self._figures)} pods: {silent[0].problem}" if silent else None
        return away(self.top.view, now) or self._problem or figures

    def action_why(self) -> None:
        """Shows its conditions in full."""
        from inflight_kubectl.top.why_screen import WhyScreen

        self.app.push_screen(WhyScreen(self._service))


def head(service: Service, figures: Mapping[str, Figures], now: datetime) -> Text:
    """Returns state, measurements against targets, and limits. Running requests, KV cache and the engines' part of the
    queue are those of the engines once they were read; the rest is the service's, from its status."""
    lines = Text()
    ready, scaling = service.condition("Ready"), service.condition("ScalingActive")
    lines.append(f"{service.state}", style="bold")
    lines.append(f"  {ready.message if ready is not None else 'not seen by the operator yet'}\n")
    seen = service.observed
    if seen is not None:
        _labelled(lines, "ready", replicas(service))
        known = service.queue or Queue(0, 0, 0)
        in_engines, running, kv = _now(figures) or (known.in_engines, seen.running, seen.kv)
        held = f" ({known.at_gateway} at the gateway)" if known.at_gateway else ""
        lines.append(f"  queue {known.at_gateway + in_engines}{held}  run {running}  ")
        _labelled(lines, "KV", share(kv))
        _labelled(lines, "  TTFT", against(seen.ttft_p95, service.ttft_target, wide=True))
        _labelled(lines, "  TPOT", against(seen.tpot_p95, service.tpot_target, wide=True))
        lines.append("\n")
    if service.limits is not None:
        limits = service.limits
        lines.append(f"limits {limits.max_num_seqs} seqs, {limits.max_num_batched_tokens} tokens", style="dim")
        lines.append(f" in force in {limits.pods_in_force} of {service.ready} pods", style="dim")
        if limits.canary is not None:
            pod, seqs, tokens = limits.canary
            lines.append(f"; {pod} tries {seqs}/{tokens}", style="yellow")
        lines.append("\n")
    if scaling is not None:
        lines.append(f"scaling: {scaling.message}", style="dim")
    return lines


def history(service: Service, now: datetime) -> Group:
    """Returns all decisions of the status, newest first."""
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", width=4)
    table.add_column(ratio=1)
    for one in reversed(service.decisions):
        text = Text("" if one.applied else "advice: ").append(one.change, style="bold").append(f"  {one.reason}")
        table.add_row(Text(age(one.time, now), style="cyan"), text)
    if not service.decisions:
        return Group(Text("No decision yet.", style="dim"))
    return Group(Text(f"Decisions, the last {len(service.decisions)}", style="bold"), table)


def _now(figures: Mapping[str, Figures]) -> tuple[int, int, float | None] | None:
    """Returns waiting and running requests of all engines, and the mean use of their caches, None where they
    do not report it; None unless all were read."""
    read = [one for one in figures.values() if one.problem is None and one.running is not None]
    if not read or len(read) < len(figures):
        return None
    queue, running = sum(one.waiting or 0 for one in read), sum(one.running or 0 for one in read)
    kv = [one.kv for one in read if one.kv is not None]
    return queue, running, sum(kv) / len(kv) if kv else None


def _labelled(lines: Text, label: str, cell: Cell) -> None:
    lines.append(f"{label} ").append(cell.text, style=STYLES[cell.tone])
