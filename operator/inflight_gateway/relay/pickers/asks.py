"""The requests of this relay: each is at the picker that owns its service, or the relay picks for it alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.link.wire import (
    ACKNOWLEDGED_S,
    MAX_TURNS,
    Answering,
    Ask,
    Elsewhere,
    Go,
    Held,
    Left,
    Progress,
    Refuse,
    Released,
    Running,
)
from inflight_gateway.relay.pickers.alone import Alone
from inflight_gateway.relay.pickers.health import BUSY_S, ticks
from inflight_gateway.relay.pickers.picker_link import PickerLink
from inflight_gateway.relay.pickers.reports import Reports
from inflight_gateway.relay.pickers.view import View
from inflight_gateway.types import Finished, PromptBlocks

SETTLED_S = 10.0
"""Seconds for which a service stays where pickers sent it that disagree about its owner."""


class Asked(Protocol):
    """Receiver of the answer to an `Ask`: `go` or `refused`, unless the request ends before."""

    def held(self) -> None:
        """The answer comes later."""

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
        address: engine of the attempt; empty: none now. counted: that at which the picker counts it; empty: unknown.
        tokens: returns the completion tokens so far. told: those of the last message.
    """

    place: _Place
    ask: Ask
    arrived: float = 0.0
    since: float = 0.0
    asked: Asked | None = None
    admitted: bool = False
    address: str = ""
    counted: str = ""
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


class Asks:
    """Asks the picker that owns the service of a request, and tells it about the request until that ends. Create it in
    the event loop. Args: view: pickers that are asked."""

    def __init__(self, view: View[PickerLink], alone: Alone, reports: Reports) -> None:
        self._view = view
        self._alone = alone
        self._reports = reports
        self._loop = asyncio.get_running_loop()
        self._places: dict[ServiceKey, _Place] = {}
        self._requests: dict[str, _Request] = {}
        self._tick = 0
        self._alone_ticks = 0
        """Ticks since a picker could be reached."""

    # Called by requests.

    def ask(self, ask: Ask, asked: Asked) -> None:
        """Asks for engines for an attempt. `asked` is called later, never in this call."""
        request = self._requests.get(ask.id)
        if request is None:
            request = self._requests[ask.id] = _Request(self._place(ask.service), ask)
            request.place.requests[ask.id] = request
        request.ask, request.asked, request.since = ask, asked, self._loop.time()
        request.arrived = request.since - ask.age_s
        request.admitted, request.address, request.counted = False, "", ""
        if request.place.link is None:
            self._loop.call_soon(self._pick_alone_now, request)
        else:
            self._ask(request, request.place.link, request.since)

    def answering(self, request_id: str, address: str, refused: tuple[str, ...], tokens: Callable[[], int]) -> None:
        """Notes that an engine answers the newest attempt of a request. The picker hears only what it does not know.

        Args:
            refused: engines that were tried before.
            tokens: returns the completion tokens of the whole answer so far.
        """
        request = self._requests.get(request_id)
        if request is not None and request.address:
            request.address, request.tokens = address, tokens
            if request.place.link is not None and (refused or address != request.counted):
                request.counted = address
                request.place.link.send(Answering(request_id, request.ask.attempt, address, refused))

    def told(self, request_id: str, blocks: PromptBlocks) -> None:
        """Notes the blocks of a prompt, whose first token has come."""
        request = self._requests.get(request_id)
        if request is not None and request.address and request.place.link is not None:
            request.place.link.send(Answering(request_id, request.ask.attempt, request.address, blocks=blocks))

    def left(self, request_id: str) -> None:
        """Notes that the newest attempt of a request failed."""
        request = self._requests.get(request_id)
        if request is not None and request.address:
            request.address = ""
            if request.place.link is not None:
                request.place.link.send(Left(request_id, request.ask.attempt))

    def stays(self, request_id: str, address: str, tokens: Callable[[], int]) -> None:
        """Asks no more: the engine before the newest attempt goes on with a request. Arguments as of `answering`."""
        request = self._requests[request_id]
        request.asked, request.address, request.tokens = None, address, tokens
        link = request.place.link
        if link is not None:
            link.asked.pop(request_id, None)
            request.ask = replace(request.ask, body=replace(request.ask.body, blocks=b""))
            self._tell(request, link, self._loop.time())

    def ended(self, report: Finished) -> None:
        """Notes that a request has ended, and reports it to the picker that has it."""
        self._alone.ended(report, self._loop.time())
        request = self._requests.pop(report.request_id, None)
        if request is None:
            self._reports.send_own(report)
            return
        place = request.place
        request.asked = None
        if place.link is not None:
            place.link.asked.pop(report.request_id, None)
        self._reports.send(report, place.link)
        del place.requests[report.request_id]
        if not place.requests:
            del self._places[request.ask.service]

    def refused(self, report: Finished) -> None:
        """Reports a request that was refused by its head, unless there are too many of them."""
        self._reports.refused(report)

    # Called by the streams.

    def take(self, link: PickerLink, message: Held | Elsewhere | Go | Refuse) -> None:
        """Applies an answer; one of a picker that has the request no longer is ignored."""
        request = self._requests.get(message.id)
        if request is None or request.ask.attempt != message.attempt or request.place.link is not link:
            return
        if isinstance(message, Elsewhere):
            self._turn(request, link, self._view.pod(message.pod))
        elif request.asked is None:
            return
        elif isinstance(message, Held):
            request.admitted = True
            link.asked.pop(message.id, None)
            request.asked.held()
        else:
            if isinstance(message, Go):
                request.counted = message.endpoints[0]
            self._answer(request, message)

    def move(self) -> None:
        """Moves the requests of each service that has another owner in the view."""
        for service, place in self._places.items():
            owner = self._view.owner(service)
            if owner is not place.owner or (place.link is not owner and not self._view.has(place.link)):
                place.owner, place.turns = owner, 0
                self._move(service, place, owner)

    def tick(self) -> None:
        """Notes that a tick has passed. Picks for requests that wait while no picker can be reached: they wait for a
        moment, in which it may start again."""
        self._tick += 1
        self._alone_ticks = self._alone_ticks + 1 if self._view.empty else 0
        if self._alone_ticks > ticks(ACKNOWLEDGED_S):
            self._pick_alone([one for one in self._requests.values() if one.asked is not None])

    def overdue(self, link: PickerLink, *, only: bool) -> bool:
        """Returns whether a picker does not acknowledge. Args: only: no other picker can be reached."""
        first = next(iter(link.asked.values()), self._tick)
        return link.health.overdue(self._tick - first, only=only)

    def give_up(self, link: PickerLink) -> None:
        """Picks for requests that a picker does not acknowledge, and that no other one can be asked for. One that is
        refused alone waits on for the picker, which knows more of limits and replicas and may only be slow."""
        for request_id, asked in tuple(link.asked.items()):
            if self._tick - asked > ticks(ACKNOWLEDGED_S):
                waits = self._tick - asked <= ticks(BUSY_S)
                self._pick_alone([self._requests[request_id]], waits=waits)

    def progress(self) -> None:
        """Reports the completion tokens of answers under way."""
        changed: dict[PickerLink, list[tuple[str, int]]] = {}
        for request_id, request in self._requests.items():
            if request.address and request.place.link is not None:
                tokens = request.tokens()
                if tokens != request.told:
                    request.told = tokens
                    changed.setdefault(request.place.link, []).append((request_id, tokens))
        for link, totals in changed.items():
            link.send(Progress(tuple(totals)))

    # Moves.

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
            ask, request.counted = replace(request.ask, age_s=now - request.arrived), request.address
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

    def _pick_alone_now(self, request: _Request) -> None:
        if request.asked is not None and request.place.link is None:
            self._pick_alone([request])

    def _pick_alone(self, requests: list[_Request], *, waits: bool = False) -> None:
        """Picks without a picker. One that got the question hears of the engine when that answers; if it picks one in
        the meantime, nothing happens. Args: waits: requests that would be refused wait."""
        for request in requests:
            ask = replace(request.ask, admitted=request.admitted)
            answer = self._alone.pick(ask, self._loop.time())
            if isinstance(answer, Refuse) and waits:
                continue
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
