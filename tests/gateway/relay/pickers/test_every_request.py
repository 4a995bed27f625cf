"""Any order of questions, answers, failures of pickers and changes of pods: a request is answered once, at one picker,
and nothing of it stays."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.link.wire import MAX_TURNS, Ask, Elsewhere, Ended, Go, Held, Refuse, Released, Running
from tests.gateway.relay.pickers.stand_ins import ADDRESS, Picker, Pods, go, report, services
from tests.gateway.virtual.loop import VirtualLoop

SERVICES = [ServiceKey("a", name) for name in ("chat", "code", "mail", "search")]
STEP_S = 0.02


@dataclass
class Client:
    """A request as the test knows it. Attributes: answers: by attempt."""

    number: int
    service: ServiceKey
    since: float
    attempt: int = 0
    answers: dict[int, list] = field(default_factory=dict)
    ended: bool = False

    @property
    def waits(self) -> bool:
        return not self.ended and not self.answers[self.attempt]

    @property
    def runs(self) -> bool:
        return not self.ended and any(isinstance(one, Go) for one in self.answers[self.attempt])

    def go(self, answer) -> None:
        self.answers[answer.attempt].append(answer)

    def refused(self, answer) -> None:
        self.answers[answer.attempt].append(answer)


class RelayOfThreePods(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop(0.0005)
        asyncio.set_event_loop(self.loop)
        self.clients: dict[str, Client] = {}
        self.silent: set[str] = set()
        """Pickers that acknowledge nothing."""

    def teardown(self) -> None:
        try:
            self._end()
        finally:
            self.loop.run_until_complete(self.pods.relay.stop())
            self.pass_time(0.1)
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.pass_time(0.1)
            self.loop.close()

    def pass_time(self, seconds: float) -> None:
        """Lets time pass, and then what is said arrive."""
        self.loop.run_until_complete(asyncio.sleep(seconds))
        self.loop.run_until_complete(asyncio.sleep(1e-6))
        while not self.loop.idle:
            self.loop.run_until_complete(asyncio.sleep(1e-4))

    @initialize()
    def begin(self) -> None:
        self.loop.run_until_complete(self._begin())

    async def _begin(self) -> None:
        self.pods = Pods(3)
        self.pods.known = services(*SERVICES)
        for picker in self.pods.pickers:
            picker.answer = lambda ask, picker=picker: self._reply(picker, ask)
        self.pods.ready(*self.pods.pickers)
        await self.pods.start()

    def _reply(self, picker: Picker, ask: Ask) -> list:
        return [] if picker.name in self.silent else [Held(ask.id, ask.attempt)]

    # The client's side.

    @rule(service=st.sampled_from(SERVICES), count=st.integers(1, 4))
    def ask(self, service, count) -> None:
        for _ in range(count):
            client = Client(len(self.clients), service, self.loop.time())
            self.clients[f"r-{client.number}"] = client
            self._ask(client)
        self.pass_time(STEP_S)

    def _ask(self, client: Client) -> None:
        client.attempt += 1
        client.answers[client.attempt] = []
        age = self.loop.time() - client.since
        self.pods.relay.asks.ask(Ask(f"r-{client.number}", client.attempt, client.service, age_s=age), client)

    @precondition(lambda self: any(one.runs for one in self.clients.values()))
    @rule(data=st.data(), again=st.booleans())
    def answer_or_fail(self, data, again) -> None:
        client = data.draw(st.sampled_from([one for one in self.clients.values() if one.runs]))
        self.pods.relay.asks.answering(f"r-{client.number}", ADDRESS, (), lambda: 3)
        if again:
            self.pods.relay.asks.left(f"r-{client.number}")
            if data.draw(st.booleans()):
                self.pass_time(STEP_S)
            self._ask(client)
        self.pass_time(STEP_S)

    @precondition(lambda self: any(not one.ended for one in self.clients.values()))
    @rule(data=st.data())
    def end(self, data) -> None:
        self._end_one(data.draw(st.sampled_from([one for one in self.clients.values() if not one.ended])))
        self.pass_time(STEP_S)

    def _end_one(self, client: Client) -> None:
        client.ended = True
        self.pods.relay.asks.ended(report(client.number, client.service))

    # The pickers' side.

    def _held(self) -> list[tuple[Picker, Ask]]:
        """Requests that pickers hold, which live and can send."""
        return [
            (picker, ask)
            for picker in self.pods.pickers
            if picker.alive and not picker.hangs and picker.streams
            for ask in picker.has.values()
            if ask.id not in picker.runs
        ]

    @precondition(lambda self: self._held())
    @rule(data=st.data(), answer=st.sampled_from(["go", "refuse", "elsewhere"]), count=st.integers(1, 3))
    def answer(self, data, answer, count) -> None:
        for _ in range(count):
            if not (held := self._held()):
                break
            picker, ask = data.draw(st.sampled_from(held))
            if answer == "go":
                picker.reply(ask, go(ask))
            elif answer == "refuse":
                picker.reply(ask, [Refuse(ask.id, ask.attempt, 503, "no_replica", "")])
            elif ask.turns < MAX_TURNS:
                named = data.draw(st.sampled_from(["gw-0", "gw-1", "gw-2", "unknown"]))
                picker.reply(ask, [Elsewhere(ask.id, ask.attempt, named)])
        self.pass_time(STEP_S)

    @rule(picker=st.integers(0, 2), seconds=st.sampled_from([0.0, 0.3, 2.5]))
    def kill_or_start(self, picker, seconds) -> None:
        one = self.pods.pickers[picker]
        if one.alive:
            self.loop.call_soon(one.wake)
            self.loop.call_soon(one.kill)
        else:
            self.loop.run_until_complete(one.start())
        self.pass_time(STEP_S + seconds)

    @rule(picker=st.integers(0, 2), seconds=st.sampled_from([0.0, 0.3, 1.2, 2.5]))
    def hang_or_wake(self, picker, seconds) -> None:
        one = self.pods.pickers[picker]
        if one.hangs:
            self.loop.call_soon(one.wake)
        elif one.alive:
            one.hang()
        self.pass_time(STEP_S + seconds)

    @rule(picker=st.integers(0, 2), seconds=st.sampled_from([0.0, 1.2, 2.5]))
    def acknowledge_or_not(self, picker, seconds) -> None:
        self.silent ^= {f"gw-{picker}"}
        self.pass_time(STEP_S + seconds)

    @rule(ready=st.sets(st.integers(0, 2)))
    def change_pods(self, ready) -> None:
        self.pods.ready(*(self.pods.pickers[one] for one in sorted(ready)))
        self.pass_time(STEP_S)

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 3.0, 12.0]))
    def wait(self, seconds) -> None:
        self.pass_time(seconds)

    # What holds.

    @invariant()
    def a_request_is_answered_once(self) -> None:
        for client in self.clients.values():
            assert all(len(answers) <= 1 for answers in client.answers.values())

    @invariant()
    def a_request_is_at_one_picker(self) -> None:
        if not hasattr(self, "pods"):
            return
        pickers = self.pods.relay.pickers
        assert set(pickers.asks._requests) == {one for one, client in self.clients.items() if not client.ended}
        for picker in self.pods.pickers:
            if not picker.alive or picker.hangs or not picker.streams:
                continue
            links = [one for one in pickers._tasks if picker.own == (one is pickers._own) and one._stream is not None]
            links = [one for one in links if picker.own or one.name == picker.name]
            here = {one for one, request in pickers.asks._requests.items() if request.place.link in links}
            # It may still have those that it refused or that failed, until they are asked for again or end.
            assert set(picker.has) <= here, picker.name
            at_work = {one for one in here if self.clients[one].waits or self.clients[one].runs}
            assert at_work <= set(picker.has), picker.name

    @invariant()
    def questions_are_repeated_in_the_order_of_arrival(self) -> None:
        for picker in self.pods.pickers if hasattr(self, "pods") else ():
            for frame in picker.frames:
                for service in SERVICES:
                    asks = [one for one in frame if isinstance(one, Ask) and one.service == service]
                    # One that goes to the same picker again goes alone.
                    again = [ask for ask in asks if ask.waited_s and ask.turns < MAX_TURNS]
                    arrived = [self.clients[ask.id].since for ask in again]
                    assert arrived == sorted(arrived)
                    moved = [one for one in frame if isinstance(one, Running | Released | Ask)]
                    for ask in again:
                        after = moved[moved.index(ask) :]
                        assert not [one for one in after if isinstance(one, Running) and one.ask.service == service]

    def _end(self) -> None:
        if not hasattr(self, "pods"):
            return
        self.silent.clear()
        for picker in self.pods.pickers:
            self.loop.call_soon(picker.wake)
            picker.answer = go
            if not picker.alive:
                self.loop.run_until_complete(picker.start())
        self.pass_time(35)
        for picker, ask in self._held():
            picker.reply(ask, go(ask))
        self.pass_time(2)
        self.a_request_is_answered_once()
        self.a_request_is_at_one_picker()
        assert not [client for client in self.clients.values() if client.waits]
        for client in self.clients.values():
            if not client.ended:
                self._end_one(client)
        self.pass_time(1)
        pickers = self.pods.relay.pickers
        assert not pickers.asks._requests
        assert not pickers.asks._places
        assert not pickers._reports._kept
        assert not any(link.asked for link in pickers._tasks)
        assert not any(picker.has for picker in self.pods.pickers)
        reports = [one.report.request_id for picker in self.pods.pickers for one in picker.of(Ended)]
        assert len(reports) == len(set(reports))
        assert pickers._reports.dropped == 0


TestRelayOfThreePods = RelayOfThreePods.TestCase
TestRelayOfThreePods.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
