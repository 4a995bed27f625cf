"""The streams to the pickers of all gateway pods: which pods there are, and which of them are asked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from inflight_gateway.discovery.catalog import Catalog, Change
from inflight_gateway.link.signed import Proving
from inflight_gateway.link.wire import Elsewhere, FromPicker, Gateways, Go, Held, Hello, Keys, Known, Refuse
from inflight_gateway.relay.pickers.alone import Alone
from inflight_gateway.relay.pickers.asks import Asks
from inflight_gateway.relay.pickers.health import TICK_S, Trust, ticks
from inflight_gateway.relay.pickers.mirror import Mirror
from inflight_gateway.relay.pickers.picker_link import PickerLink
from inflight_gateway.relay.pickers.reports import Reports
from inflight_gateway.relay.pickers.view import View
from inflight_gateway.types import Finished

_log = logging.getLogger(__name__)

PROGRESS_S = 1.0


class Pickers:
    """Keeps the streams. Create it in the event loop.

    The picker of this pod tells the services and the other pods; while it is not trusted, others tell the pods. A
    picker that fails is out of this relay's view, see `Health`, and the next pods own its services.

    Args:
        path: socket of the picker of this pod.
        relay: name of this process, unique.
        keys: called with the gateway keys.

    Attributes:
        asks: for requests.
    """

    def __init__(self, path: Path, relay: str, catalog: Catalog, alone: Alone, keys: Callable[[Keys], None]) -> None:
        self._relay = relay
        self._catalog = catalog
        self._mirror = Mirror(catalog)
        self._alone = alone
        self._use_keys = keys
        self._keys = Keys(None)
        self._loop = asyncio.get_running_loop()
        self._own = PickerLink("of this pod", path, self)
        self._tasks: dict[PickerLink, asyncio.Task[None]] = {}
        """All streams."""
        self._view = View(self._own)
        self._reports = Reports(self._view, self._own)
        self.asks = Asks(self._view, alone, self._reports)
        self._gateways: dict[PickerLink, Gateways] = {}
        """The pods that each picker tells, the newest word last."""
        self._used: Gateways | None = None
        self._tick = 0
        self._resized = False
        """Numbers of engines have changed."""
        catalog.subscribe(self._changed)

    async def run(self) -> None:
        """Keeps the streams, until cancelled."""
        self._tasks[self._own] = self._loop.create_task(self._own.run())
        try:
            while True:
                await asyncio.sleep(TICK_S)
                try:
                    self._on_tick()
                except Exception:  # a bug with one request must not end the streams
                    _log.exception("a tick failed")
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _on_tick(self) -> None:
        self._tick += 1
        for link in self._tasks:
            link.health.tick()
        self._look()
        for link in tuple(self._tasks):
            self._check(link)
        self.asks.tick()
        if self._tick % ticks(PROGRESS_S) == 0:
            if self._resized:
                self._share_out()
            self.asks.progress()
            self._reports.every_second()

    def _check(self, link: PickerLink) -> None:
        """Asks other pickers where this one does not acknowledge, or picks alone where there is no other."""
        only = not any(one.trust is not Trust.GONE for one in self._tasks if one is not link)
        if self.asks.overdue(link, only=only):
            link.health.failed()
            self._look()
            self.asks.give_up(link)

    # Called by the streams.

    def opened(self, link: PickerLink) -> None:
        """Takes a new stream into use. Called by it."""
        if link is self._own:
            self._mirror.begin()
        link.send(Hello(self._relay))
        self._look()

    def lost(self, link: PickerLink, unsent: list[Finished]) -> None:
        """Goes on without a stream. Called by it."""
        self._look()
        self._reports.send_again(unsent)

    def take(self, link: PickerLink, messages: list[FromPicker]) -> None:
        """Applies messages of a picker: only that of this pod is believed about services and keys."""
        for message in messages:
            match message:
                case Held() | Elsewhere() | Go() | Refuse():
                    self.asks.take(link, message)
                case Gateways():
                    self._gateways.pop(link, None)
                    self._gateways[link] = message
                    self._look()
                case Known() if link is self._own:
                    self._mirror.take(message)
                case Keys() if link is self._own:
                    self._keys = message
                    self._use_keys(message)

    # The owners.

    def _take_pods(self) -> None:
        """Applies the newest word about the pods."""
        own = self._gateways.get(self._own)
        trusted = [one for one in self._gateways if one.trust is Trust.TRUSTED]
        if own is None or not trusted:
            return
        message = own if self._own in trusted else self._gateways[trusted[-1]]
        if message is self._used:
            return
        self._used = message
        self._alone.relays = max(1, len(message.pods)) * own.relays
        pods: dict[str, PickerLink] = {}
        for name, address in message.pods:
            # A picker that knows of no ready pod names itself, without an address.
            link = self._own if name == own.own else self._view.pods.get(name)
            if link is None or (link is not self._own and address and link.address != address):
                link = PickerLink(name, address, self, partial(self._proving, name))
                self._tasks[link] = self._loop.create_task(link.run())
            pods[name] = link
        if pods.keys() != self._view.pods.keys() and len(pods) > 1 and self._keys.current is None:
            _log.warning("there is no gateway key: pickers of other gateway pods are not asked")
        self._view.pods = pods
        self._share_out()
        for link in [one for one in self._tasks if one is not self._own and one not in pods.values()]:
            self._tasks.pop(link).cancel()
            self._gateways.pop(link, None)

    def _proving(self, pod: str) -> Proving | None:
        keys = self._keys.known
        return Proving(keys, self._relay, pod) if keys else None

    def _changed(self, change: Change) -> None:
        self._resized |= bool(change.services or change.endpoints)

    def _share_out(self) -> None:
        self._resized = False
        if self._view.share_out(self._catalog.engine_counts()):
            self._move()

    def _look(self) -> None:
        self._take_pods()
        if self._view.refresh():
            self._move()

    def _move(self) -> None:
        self.asks.move()
        self._reports.send_again()
