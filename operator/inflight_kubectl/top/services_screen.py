"""The view of all services."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Input, Static

from inflight_kubectl.access.resources import Service
from inflight_kubectl.output import age, latency
from inflight_kubectl.top.rows import SORTS, arranged, columns, decision_text, is_wide, service_cells
from inflight_kubectl.top.summary import counts
from inflight_kubectl.top.widgets import Banner, Grid, LiveScreen, ServiceGrid, away, clock, title_line


class ServicesScreen(LiveScreen):
    """A row for each service, and below them the last decision for the one under the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("s", "sort", "Sort"),
        Binding("r", "reverse", "Reverse"),
        Binding("w", "why", "Why"),
        Binding("escape", "clear_filter", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._sort = 0
        self._reverse = False
        self._services: dict[str, Service] = {}

    def compose(self) -> ComposeResult:
        """Title, banner, table or a sentence instead of it, detail, filter, keys."""
        yield Static(classes="title")
        yield Banner()
        yield ServiceGrid(id="services")
        yield Static(classes="empty", markup=False)
        yield Static(classes="detail", markup=False)
        yield Input(placeholder="filter: words in name, namespace, state or model", classes="filter", compact=True)
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        """Keeps ages current."""
        self.set_interval(self.top.interval, self.view_changed)
        self.query_one(Grid).focus()
        self.view_changed()

    def view_changed(self) -> None:
        """Draws the application's current view."""
        if not self.is_mounted or not self.is_current:
            return
        view, now = self.top.view, datetime.now(UTC)
        width = self.size.width - 1
        namespaces = self.top.source.scope is None
        shown = columns(width, namespaces=namespaces)
        found = arranged(view.services, SORTS[self._sort], reverse=self._reverse, text=self.query_one(Input).value)
        self._services = {f"{one.namespace}/{one.name}": one for one in found}
        wide = is_wide(width, namespaces=namespaces)
        rows = {key: service_cells(one, shown, now, wide=wide) for key, one in self._services.items()}
        self.query_one(Grid).fill(shown, rows)
        self.query_one(Banner).set_text(away(view, now))
        self._draw_title(len(found), now)
        self._draw_empty(bool(found))
        self._draw_detail(now)

    def _draw_title(self, found: int, now: datetime) -> None:
        view, source = self.top.view, self.top.source
        where = "all namespaces" if source.scope is None else f"namespace {source.scope}"
        text = self.query_one(Input).value.strip()
        parts = [f"{found} of {len(view.services)} match “{text}”" if text else counts(view.services)]
        if self._sort or self._reverse:
            parts.append(f"by {SORTS[self._sort]}{' ↑' if self._reverse else ''}")
        parts += [where, *([f"context {source.context}"] if source.context else [])]
        self.query_one(".title", Static).update(title_line(parts, clock(now), self.size.width))

    def _draw_empty(self, any_found: bool) -> None:
        view, source = self.top.view, self.top.source
        self.query_one(Grid).display = any_found
        sentence = ""
        if view.at is None:
            sentence = "Reading the services ..." if view.problem is None else "No answer from the API server yet."
        elif view.services:
            sentence = "No service matches the filter. Esc clears it."
        elif source.scope is None:
            sentence = (
                "There are no InferenceServices in this cluster. `kubectl apply -f examples/chat.yaml` makes one."
            )
        else:
            sentence = f"There are no InferenceServices in namespace {source.scope}. `top -A` shows all namespaces."
        empty = self.query_one(".empty", Static)
        empty.set_class(not any_found, "shown")
        if not any_found:
            empty.update(sentence)

    def _draw_detail(self, now: datetime) -> None:
        service = self.selected
        detail = self.query_one(".detail", Static)
        detail.display = service is not None
        if service is not None:
            detail.update(detail_lines(service, now))

    @property
    def selected(self) -> Service | None:
        """The service under the cursor."""
        return self._services.get(self.query_one(Grid).current or "")

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """The detail follows the cursor."""
        self._draw_detail(datetime.now(UTC))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter on the table."""
        self.action_open()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filters with each letter."""
        self.view_changed()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter keeps the filter and goes back to the table."""
        self.query_one(Input).display = bool(event.value.strip())
        self.query_one(Grid).focus()

    def action_open(self) -> None:
        """Shows the service under the cursor with its pods."""
        from inflight_kubectl.top.service_screen import ServiceScreen

        if self.selected is not None:
            self.app.push_screen(ServiceScreen(self.selected))

    def action_why(self) -> None:
        """Shows its conditions in full."""
        from inflight_kubectl.top.why_screen import WhyScreen

        if self.selected is not None:
            self.app.push_screen(WhyScreen(self.selected))

    def action_filter(self) -> None:
        """Types a filter."""
        field = self.query_one(Input)
        field.display = True
        # `Widget.focus` takes effect later: the first letters typed quickly would go to the table.
        self.set_focus(field)

    def action_clear_filter(self) -> None:
        """Shows all services again."""
        field = self.query_one(Input)
        field.value = ""
        field.display = False
        self.query_one(Grid).focus()

    def action_sort(self) -> None:
        """Sorts by the next column."""
        self._sort = (self._sort + 1) % len(SORTS)
        self.view_changed()

    def action_reverse(self) -> None:
        """Reverses the order."""
        self._reverse = not self._reverse
        self.view_changed()


def detail_lines(service: Service, now: datetime) -> Text:
    """Returns the state of a service with its reason, its targets, and the last decision."""
    ready = service.condition("Ready")
    lines = Text()
    lines.append(f"{service.namespace}/{service.name}", style="bold")
    lines.append(f"  {ready.message if ready is not None else 'the operator has not seen this service yet'}\n")
    slo = f"targets TTFT {latency(service.ttft_target)}, TPOT {latency(service.tpot_target)}"
    lines.append(slo + ("" if service.has_slo else " (defaults)"), style="dim")
    if service.limits is not None:
        limits = service.limits
        lines.append(f"; limits {limits.max_num_seqs} seqs, {limits.max_num_batched_tokens} tokens", style="dim")
        lines.append(f" in force in {limits.pods_in_force} of {service.ready}", style="dim")
    if service.queue is not None and service.queue.at_gateway:
        lines.append(f"; {service.queue.text}", style="dim")
    lines.append("\n")
    if service.decisions:
        last = service.decisions[-1]
        lines.append(f"{age(last.time, now)} ago  ", style="bold").append(decision_text(last))
    else:
        lines.append("no decision yet", style="dim")
    return lines
