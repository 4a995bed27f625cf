"""The pickers of all gateway pods, and the requests of this relay: each is at the picker that owns its service."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.discovery.catalog import Catalog, Change
from inflight_gateway.link.signed import Proving
from inflight_gateway.link.wire import (
    ACKNOWLEDGED_S,
    MAX_TURNS,
    Answering,
    Ask,
    Elsewhere,
    Ended,
    FromPicker,
    Gateways,
    Go,
    Held,
    Hello,
    Keys,
    Known,
    Left,
    Progress,
    Refuse,
    Released,
    Running,
)
from inflight_gateway.relay.alone import Alone
from inflight_gateway.relay.health import TICK_S, Trust, ticks
from inflight_gateway.relay.mirror import Mirror
from inflight_gateway.relay.picker_link import PickerLink
from inflight_gateway.relay.view import View
from inflight_gateway.types import Finished

_log = logging.getLogger(__name__)

PROGRESS_S = 1.0

SETTLED_S = 10.0
"""Seconds for which a service stays where pickers sent it that disagree about its owner."""

MAX_REPORTS = 10_000
"""Most reports that wait for a picker: those of about 5 s at the highest rate that one process can serve."""

MAX_REFUSED_PER_S = 100
"""Most reports per second on requests that were refused by their heads: their number depends on clients alone."""


class Asked(Protocol):
    """Receiver of the answer to an `Ask`: one call, unless the request ends before."""

    def go(self, go: Go) -> None: ...

    def refused(self, refuse: Refuse) -> None: ...


@dataclass(slots=True, eq=False)
class _Request:
    """A request, from its first question to its end.

    Attributes:
        place: where the requests of its service are.
        ask: the newest question; without the hashes of its prompt once engines are picked.
        arrived, since: when the request arrived, and when the relay first asked for the newest attempt, in seconds.
        asked: waits for the answer; None: nothing does.
        admitted: a picker has held the attempt.
        address: engine of the attempt; empty: none now. tokens: returns the completion tokens so far. told: those of
            the last message.
    """

    place: _Place
    ask: Ask
    arrived: float = 0.0
    since: float = 0.0
    asked: Asked | None = None
    admitted: bool = False
    address: str = ""
    tokens: Callable[[], int] = int
    told: int = 0


@dataclass(slots=True, eq=False)
class _Place:
    """The picker that has the requests of a service.

    Attributes:
        link: its stream; None: the relay picks alone. owner: that of the owner in this relay's view; `link` may be
            another one that a picker has named.
        turns: answers `Elsewhere` in a row. turned: tick of the last one.
    """

    link: PickerLink | None
    owner: PickerLink | None
    turns: int = 0
    turned: int = 0
    requests: dict[str, _Request] = field(default_factory=dict)


class Pickers:
    """Asks the picker that owns the service of a request. Create it in the event loop.

    The picker of this pod tells the services and the other pods. A picker that fails is out of this relay's view, see
    `Health`, and the next pods own its services. While no picker can be reached, the relay picks alone.

    Args:
        path: socket of the picker of this pod.
        relay: name of this process, unique.
        keys: called with the gateway keys.

    Attributes:
        dropped: reports that no picker got.
    """

    def __init__(self, path: Path, relay: str, catalog: Catalog, alone: Alone, keys: Callable[[Keys], None]) -> None:
        self.dropped = 0
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
        self._resized = False
        """Numbers of engines have changed."""
        self._places: dict[ServiceKey, _Place] = {}
        self._requests: dict[str, _Request] = {}
        self._reports: deque[Finished] = deque()
        """Reports while no picker can be reached, oldest first."""
        self._refused_left = MAX_REFUSED_PER_S
        self._logged = 0
        self._tick = 0
        self._alone_ticks = 0
        catalog.subscribe(self._changed)

    # Called by requests.

    def ask(self, ask: Ask, asked: Asked) -> None:
        """Asks for engines for an attempt. `asked` is called later, never in this call."""
        request = self._requests.get(ask.id)
        if request is None:
            request = self._requests[ask.id] = _Request(self._place(ask.service), ask)
            request.place.requests[ask.id] = request
        request.ask, request.asked, request.since = ask, asked, self._loop.time()
        request.arrived = request.since - ask.age_s
        request.admitted, request.address = False, ""
        if request.place.link is None:
            self._loop.call_soon(self._pick_alone_now, request)
        else:
            self._ask(request, request.place.link, request.since)

    def answering(self, request_id: str, address: str, refused: tuple[str, ...], tokens: Callable[[], int]) -> None:
        """Notes that an engine answers the newest attempt of a request.

        Args:
            refused: engines that were tried before.
            tokens: returns the completion tokens of the whole answer so far.
        """
        request = self._requests.get(request_id)
        if request is not None and request.address:
            request.address, request.tokens = address, tokens
            if request.place.link is not None:
                request.place.link.send(Answering(request_id, request.ask.attempt, address, refused))

    def left(self, request_id: str) -> None:
        """Notes that the newest attempt of a request failed."""
        request = self._requests.get(request_id)
        if request is not None and request.address:
            request.address = ""
            if request.place.link is not None:
                request.place.link.send(Left(request_id, request.ask.attempt))

    def ended(self, report: Finished) -> None:
        """Notes that a request has ended; its report reaches a picker later where none can be reached."""
        self._alone.ended(report, self._loop.time())
        request = self._requests.pop(report.request_id, None)
        self._report(report, self._own if request is None else request.place.link)
        if request is not None:
            request.asked = None
            if request.place.link is not None:
                request.place.link.asked.pop(report.request_id, None)
            del request.place.requests[report.request_id]
            if not request.place.requests:
                del self._places[request.ask.service]

    def refused(self, report: Finished) -> None:
        """Reports a request that was refused by its head, unless there are too many of them."""
        if self._refused_left:
            self._refused_left -= 1
            self._report(report, self._own)
        else:
            self.dropped += 1

    # The streams.

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
        for link in self._tasks:
            self._check(link)
        self._alone_ticks = self._alone_ticks + 1 if self._view.empty else 0
        if self._alone_ticks > ticks(ACKNOWLEDGED_S):
            self._pick_alone([one for one in self._requests.values() if one.asked is not None])
        if self._tick % ticks(PROGRESS_S) == 0:
            self._refused_left = MAX_REFUSED_PER_S
            if self._resized:
                self._share_out()
            self._progress()
            if self.dropped > self._logged:
                _log.warning("%d reports of requests were not sent so far", self.dropped)
                self._logged = max(self.dropped, 2 * self._logged)

    def _progress(self) -> None:
        changed: dict[PickerLink, list[tuple[str, int]]] = {}
        for request_id, request in self._requests.items():
            if request.address and request.place.link is not None:
                tokens = request.tokens()
                if tokens != request.told:
                    request.told = tokens
                    changed.setdefault(request.place.link, []).append((request_id, tokens))
        for link, totals in changed.items():
            link.send(Progress(tuple(totals)))

    def opened(self, link: PickerLink) -> None:
        """Takes a new stream into use. Called by it."""
        if link is self._own:
            self._mirror.begin()
        link.send(Hello(self._relay))
        self._look()

    def heard_again(self, link: PickerLink) -> None:
        """Looks at a picker that was silent. Called by its stream."""
        self._look()

    def lost(self, link: PickerLink, unsent: list[Finished]) -> None:
        """Goes on without a stream. Called by it."""
        self._look()
        for report in unsent:
            self._report(report, self._view.owner(report.service))

    def take(self, link: PickerLink, messages: list[FromPicker]) -> None:
        """Applies messages of a picker. Called by its stream. Answers of one that has the request no longer are
        ignored."""
        for message in messages:
            match message:
                case Held() | Elsewhere() | Go() | Refuse():
                    request = self._requests.get(message.id)
                    if request is not None and request.ask.attempt == message.attempt and request.place.link is link:
                        self._take_answer(request, message, link)
                case _ if link is self._own:
                    self._take_known(message)

    def _take_known(self, message: FromPicker) -> None:
        match message:
            case Known():
                self._mirror.take(message)
            case Keys():
                self._keys = message
                self._use_keys(message)
            case Gateways():
                self._take_pods(message)

    # The owners.

    def _take_pods(self, message: Gateways) -> None:
        self._alone.relays = max(1, len(message.pods)) * message.relays
        pods: dict[str, PickerLink] = {}
        for name, address in message.pods:
            link = self._own if name == message.own else self._view.pods.get(name)
            if link is None or (link is not self._own and link.address != address):
                link = PickerLink(name, address, self, partial(self._proving, name))
                self._tasks[link] = self._loop.create_task(link.run())
            pods[name] = link
        if len(pods) > 1 and self._keys.current is None:
            _log.warning("there is no gateway key: pickers of other gateway pods are not asked")
        self._view.pods = pods
        self._share_out()
        for link in [one for one in self._tasks if one is not self._own and one not in pods.values()]:
            self._tasks.pop(link).cancel()

    def _proving(self, pod: str) -> Proving | None:
        keys = [key for key in (self._keys.current, self._keys.previous) if key is not None]
        return Proving(keys, self._relay, pod) if keys else None

    def _changed(self, change: Change) -> None:
        self._resized |= bool(change.services or change.endpoints)

    def _share_out(self) -> None:
        self._resized = False
        catalog = self._catalog
        if self._view.share_out({service: len(catalog.endpoints_of(service)) for service in catalog.services}):
            self._move_all()

    def _look(self) -> None:
        if self._view.refresh():
            self._move_all()

    def _move_all(self) -> None:
        """Moves the requests of each service that has another owner, and sends reports that wait."""
        for service, place in self._places.items():
            owner = self._view.owner(service)
            if owner is not place.owner or (place.link is not owner and not self._view.has(place.link)):
                place.owner, place.turns = owner, 0
                self._move(service, place, owner)
        reports, self._reports = self._reports, deque()
        for report in reports:
            self._report(report, self._view.owner(report.service))

    def _move(self, service: ServiceKey, place: _Place, link: PickerLink | None) -> None:
        """Moves the requests of a service to another picker: those that engines answer, then those that wait, in the
        order of their arrival."""
        before, place.link = place.link, link
        if before is link:
            return
        if before is not None:
            for request_id in place.requests:
                before.asked.pop(request_id, None)
            before.send(Released(service))
        if link is None:
            return
        now = self._loop.time()
        requests = sorted(place.requests.values(), key=lambda one: (one.asked is not None, one.arrived))
        for request in requests:
            self._tell(request, link, now)

    def _place(self, service: ServiceKey) -> _Place:
        place = self._places.get(service)
        if place is None:
            owner = self._view.owner(service)
            place = self._places[service] = _Place(owner, owner)
        return place

    # Questions and answers.

    def _tell(self, request: _Request, link: PickerLink, now: float) -> None:
        """Tells a picker about a request that another one had."""
        if request.asked is not None:
            self._ask(request, link, now)
        elif request.address:
            ask = replace(request.ask, age_s=now - request.arrived)
            link.send(Running(ask, request.address, request.tokens()))

    def _ask(self, request: _Request, link: PickerLink, now: float) -> None:
        """Asks a picker, for the first time or again."""
        turns, without = self._turns(request.place), self._view.without
        if without or turns or now > request.since:
            request.ask = replace(
                request.ask,
                age_s=now - request.arrived,
                waited_s=now - request.since,
                without=without,
                turns=turns,
                admitted=request.admitted,
            )
        link.asked[request.ask.id] = self._tick
        link.send(request.ask)

    def _turns(self, place: _Place) -> int:
        return place.turns if self._tick - place.turned < ticks(SETTLED_S) else 0

    def _take_answer(self, request: _Request, message: Held | Elsewhere | Go | Refuse, link: PickerLink) -> None:
        if isinstance(message, Elsewhere):
            self._turn(request, link, self._view.pod(message.pod))
        elif request.asked is None:
            return
        elif isinstance(message, Held):
            request.admitted = True
            link.asked.pop(message.id, None)
        else:
            self._answer(request, message)

    def _turn(self, request: _Request, link: PickerLink, named: PickerLink | None) -> None:
        """Goes to the picker that another one named. Args: named: None: this relay does not ask it."""
        if request.ask.turns >= MAX_TURNS:
            return  # late, from before: the picker was asked again since
        place = request.place
        place.turns, place.turned = self._turns(place) + 1, self._tick
        if named is None or named is link:
            place.turns = MAX_TURNS
            self._tell(request, link, self._loop.time())
        else:
            self._move(request.ask.service, place, named)

    def _check(self, link: PickerLink) -> None:
        """Asks other pickers where this one does not acknowledge, or picks alone where there is no other."""
        first = next(iter(link.asked.values()), self._tick)
        only = not any(one.trust is not Trust.GONE for one in self._tasks if one is not link)
        if link.health.overdue(self._tick - first, only=only):
            link.health.failed()
            self._look()
            due = self._tick - ticks(ACKNOWLEDGED_S)
            self._pick_alone([self._requests[one] for one, asked in link.asked.items() if asked < due])

    def _pick_alone_now(self, request: _Request) -> None:
        if request.asked is not None and request.place.link is None:
            self._pick_alone([request])

    def _pick_alone(self, requests: list[_Request]) -> None:
        """Picks without a picker. One that got the question hears of the engine when that answers; if it picks one in
        the meantime, nothing happens."""
        for request in requests:
            ask = replace(request.ask, admitted=request.admitted)
            answer = self._alone.pick(ask, self._loop.time())
            if isinstance(answer, Refuse) and request.place.link is not None:
                request.place.link.send(Left(ask.id, ask.attempt))  # the picker may hold it still
            self._answer(request, answer)

    def _answer(self, request: _Request, answer: Go | Refuse) -> None:
        asked, request.asked = request.asked, None
        assert asked is not None
        if request.place.link is not None:
            request.place.link.asked.pop(answer.id, None)
        if isinstance(answer, Refuse):
            asked.refused(answer)
            return
        request.ask = replace(request.ask, body=replace(request.ask.body, blocks=b""))
        request.address, request.tokens, request.told = answer.endpoints[0], int, 0
        asked.go(answer)

    def _report(self, report: Finished, link: PickerLink | None) -> None:
        if link is None or not self._view.has(link):
            link = self._view.owner(report.service)
        if link is not None:
            link.send(Ended(report))
            return
        self._reports.append(report)
        if len(self._reports) > MAX_REPORTS:
            self._reports.popleft()
            self.dropped += 1
