"""Questions of a relay whose pod is the only one, and the answers of its picker."""

from __future__ import annotations

import asyncio

from inflight_gateway.link.wire import (
    ACKNOWLEDGED_S,
    SILENT_S,
    Answering,
    Ask,
    Ended,
    Go,
    Hello,
    Keys,
    Known,
    Left,
    Progress,
    Refuse,
    Running,
)
from inflight_gateway.relay.pickers import health, reports
from inflight_gateway.request.body import Body
from inflight_gateway.types import RateLimits, ServiceConfig
from tests.gateway.relay.pickers.stand_ins import ADDRESS, CHAT, KEY, PICKED, go, held, report, silent


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_relay_says_hello_and_takes_what_the_picker_knows(pods):
    assert pods.own.messages == [Hello("relay-1")]
    assert set(pods.relay.catalog.services) == {CHAT}
    assert pods.relay.keys == [Keys(KEY)]
    assert pods.relay.alone.relays == 2


async def test_the_picker_answers_and_hears_of_the_attempt(pods):
    relay = pods.relay
    assert (await relay.ask(body=Body(blocks=b"12345678"))).endpoints == (PICKED,)
    relay.asks.answering("r-1", PICKED, ("10.0.0.8:1",), lambda: 0)
    relay.asks.left("r-1")
    relay.end()
    await asyncio.sleep(0.01)
    assert pods.own.messages[2:] == [
        Answering("r-1", 1, PICKED, ("10.0.0.8:1",)),
        Left("r-1", 1),
        Ended(report()),
    ]


async def test_the_picker_does_not_hear_what_it_knows(pods):
    relay = pods.relay
    await relay.ask()
    relay.asks.answering("r-1", PICKED, (), lambda: 0)
    relay.end()
    await asyncio.sleep(0.01)
    assert pods.own.messages[2:] == [Ended(report())]


async def test_the_picker_hears_of_another_engine_than_the_picked_one_once(pods):
    relay = pods.relay
    await relay.ask()
    relay.asks.answering("r-1", ADDRESS, (), lambda: 0)
    relay.asks.answering("r-1", ADDRESS, (), lambda: 0)
    await asyncio.sleep(0.01)
    assert pods.own.of(Answering) == [Answering("r-1", 1, ADDRESS)]


async def test_messages_of_one_turn_of_the_loop_are_one_frame(pods):
    answers = [pods.relay.ask(number) for number in range(100)]
    await asyncio.gather(*answers)
    assert [len(frame) for frame in pods.own.frames] == [1, 100]


async def test_a_picker_that_refuses_is_obeyed(pods):
    pods.own.answer = lambda ask: [Refuse(ask.id, ask.attempt, 429, "rate_limit_exceeded", "slow down")]
    assert (await pods.relay.ask()).status == 429


async def test_without_an_acknowledgement_the_relay_picks_alone_and_a_late_go_is_ignored(pods):
    pods.own.answer = silent
    begun = now()
    answer = await pods.relay.ask()
    assert ACKNOWLEDGED_S <= now() - begun < 2 * ACKNOWLEDGED_S + health.TICK_S
    assert answer.endpoints == (ADDRESS,)
    pods.own.send(Go("r-1", 1, (PICKED,)))
    pods.relay.asks.answering("r-1", ADDRESS, (), lambda: 0)
    await asyncio.sleep(0.01)
    # The picker counts it then: its question was answered by the engine.
    assert pods.own.of(Answering) == [Answering("r-1", 1, ADDRESS)]
    assert pods.own.of(Left) == []


async def test_a_picker_that_works_through_a_burst_is_waited_for(pods):
    """Else a burst would pass by the limits and the queue."""
    pods.own.answer = silent
    answers = [pods.relay.ask(number) for number in range(6)]
    for number in range(6):
        await asyncio.sleep(ACKNOWLEDGED_S / 2)
        pods.own.send(Go(f"r-{number}", 1, (PICKED,)))
    assert {(await answer).endpoints for answer in answers} == {(PICKED,)}


async def test_a_picker_that_answers_all_but_one_is_not_waited_for(pods):
    pods.own.answer = lambda ask: [] if ask.id == "r-0" else go(ask)
    begun, forgotten = now(), pods.relay.ask(0)
    number = 0
    while not forgotten.done():
        number += 1
        await pods.relay.ask(number)
        await asyncio.sleep(ACKNOWLEDGED_S / 2)
    assert forgotten.result().endpoints == (ADDRESS,)
    assert health.BUSY_S < now() - begun < health.BUSY_S + 0.5


async def test_a_held_request_waits_for_as_long_as_the_picker_holds_it(pods):
    pods.own.answer = held
    answer = pods.relay.ask()
    await asyncio.sleep(100)
    assert not answer.done()
    pods.own.send(Go("r-1", 1, (PICKED,)))
    assert (await answer).endpoints == (PICKED,)


async def test_without_a_picker_the_relay_picks_at_once(pods):
    pods.own.kill()
    await asyncio.sleep(0.1)
    begun = now()
    assert (await pods.relay.ask()).endpoints == (ADDRESS,)
    assert now() == begun


async def test_held_requests_of_a_lost_picker_are_asked_for_again_or_picked_alone(pods):
    pods.own.answer = held
    answers = [pods.relay.ask(number, age_s=1.0) for number in range(2)]
    await asyncio.sleep(0.05)
    pods.own.kill()
    await asyncio.sleep(0.05)
    assert not answers[0].done()
    pods.own.answer = lambda ask: go(ask) if ask.id == "r-0" else []
    await pods.own.start()
    first, second = await asyncio.gather(*answers)
    assert first.endpoints == (PICKED,)
    assert second.endpoints == (ADDRESS,)
    again = pods.own.of(Ask)[2:]
    assert all(ask.admitted and ask.age_s > 1.0 and 0 < ask.waited_s < 1.0 for ask in again)


async def test_a_held_request_of_a_picker_that_does_not_return_is_picked_alone(pods):
    pods.own.answer = held
    answer = pods.relay.ask()
    await asyncio.sleep(0.05)
    pods.own.kill()
    begun = now()
    assert (await answer).endpoints == (ADDRESS,)
    assert now() - begun < ACKNOWLEDGED_S + 0.3


async def test_held_requests_of_a_hung_picker_are_picked_alone_after_a_long_silence(pods):
    pods.own.answer = held
    answer = pods.relay.ask()
    await asyncio.sleep(0.05)
    pods.own.hang()
    begun = now()
    assert (await answer).endpoints == (ADDRESS,)
    assert SILENT_S - 0.6 < now() - begun < SILENT_S + ACKNOWLEDGED_S + 0.3
    pods.own.wake()
    await asyncio.sleep(0.3)
    assert pods.own.of(Running)[-1].ask.id == "r-1"
    assert set(pods.own.has) == {"r-1"}


async def test_a_new_picker_hears_what_runs_and_reports_of_the_time_without_one(pods):
    relay, own = pods.relay, pods.own
    await relay.ask(1, body=Body(prompt_tokens=7, blocks=b"12345678"))
    await relay.ask(2)
    relay.asks.answering("r-1", "10.0.0.7:1", (), lambda: 3)
    own.kill()
    await asyncio.sleep(0.1)
    await relay.ask(3)
    relay.end(2, completion_tokens=5)
    before = len(own.messages)
    await own.start()
    await asyncio.sleep(2)
    hello, *running, ended = own.messages[before : before + 4]
    assert hello == Hello("relay-1")
    # Without the hashes of the prompt, which are long.
    assert [(one.ask.id, one.ask.body, one.address, one.tokens) for one in running] == [
        ("r-1", Body(prompt_tokens=7), "10.0.0.7:1", 3),
        ("r-3", Body(), ADDRESS, 0),
    ]
    assert ended.report.completion_tokens == 5


async def test_reports_without_a_picker_are_bounded_and_the_oldest_go(pods, monkeypatch):
    monkeypatch.setattr(reports, "MAX_REPORTS", 10)
    pods.own.kill()
    await asyncio.sleep(0.1)
    for number in range(15):
        pods.relay.end(number)
    await pods.own.start()
    await asyncio.sleep(2)
    assert [one.report.request_id for one in pods.own.of(Ended)] == [f"r-{number}" for number in range(5, 15)]
    assert pods.relay.pickers._reports.dropped == 5


async def test_progress_tells_changed_answers_once_a_second(pods):
    counts = {"r-1": 3, "r-2": 0}
    for number in (1, 2):
        await pods.relay.ask(number)
        pods.relay.asks.answering(f"r-{number}", ADDRESS, (), lambda number=number: counts[f"r-{number}"])
    await asyncio.sleep(3)
    counts["r-2"] = 4
    await asyncio.sleep(3)
    assert pods.own.of(Progress) == [Progress((("r-1", 3),)), Progress((("r-2", 4),))]


async def test_refused_heads_are_reported_only_so_many_times_a_second(pods):
    for number in range(1000):
        pods.relay.asks.refused(report(number))
    await asyncio.sleep(0.1)
    assert len(pods.own.of(Ended)) == reports.MAX_REFUSED_PER_S
    assert pods.relay.pickers._reports.dropped == 1000 - reports.MAX_REFUSED_PER_S
    await asyncio.sleep(1)
    pods.relay.asks.refused(report(1000))
    await asyncio.sleep(0.1)
    assert len(pods.own.of(Ended)) == reports.MAX_REFUSED_PER_S + 1


async def test_a_request_that_ends_before_its_answer_gets_none(pods):
    pods.own.answer = silent
    answer = pods.relay.ask()
    pods.relay.end()
    await asyncio.sleep(10)
    assert not answer.done()
    assert not pods.relay.asks._requests


async def test_an_unreadable_message_costs_the_stream_and_nothing_else(pods, caplog):
    pods.own.streams[-1].write(b"\x00\x00\x00\x02hi")
    await asyncio.sleep(1)
    assert len(pods.own.of(Hello)) == 2
    assert (await pods.relay.ask()).endpoints == (PICKED,)
    assert "stream of the picker of this pod is closed" in caplog.text


async def test_an_attempt_that_is_refused_without_the_picker_is_held_there_no_longer(pods):
    pods.own.answer = silent
    begun = now()
    assert (await pods.relay.ask(attempt=2, avoid=(ADDRESS,))).status == 503
    assert now() - begun > health.BUSY_S
    await asyncio.sleep(0.01)
    assert pods.own.of(Left) == [Left("r-1", 2)]


async def test_a_slow_picker_refuses_and_holds_and_not_the_relay_that_knows_less(pods):
    """It may have admitted what the relay's share of the limits has no room for."""
    pods.own.answer = silent
    limits = RateLimits(requests_per_minute=4)  # two relays: two of them alone
    config = ServiceConfig(CHAT, "u", "m", default_limits=limits)
    pods.own.send(Known(services=((CHAT, config),), complete=True))
    await asyncio.sleep(0.05)
    answers = [pods.relay.ask(number) for number in range(4)]
    await asyncio.sleep(health.BUSY_S / 2)
    assert [answer.done() for answer in answers] == [True, True, False, False]
    for number in (2, 3):
        pods.own.send(Go(f"r-{number}", 1, (PICKED,)))
    assert {(await answer).endpoints for answer in answers[2:]} == {(PICKED,)}


async def test_a_tick_that_fails_is_logged_and_the_next_one_comes(pods, caplog, monkeypatch):
    def fail() -> None:
        monkeypatch.undo()
        raise RuntimeError("a bug")

    monkeypatch.setattr(pods.relay.asks, "progress", fail)
    await asyncio.sleep(2)
    assert "a bug" in caplog.text
    pods.own.kill()
    await asyncio.sleep(0.5)
    assert (await pods.relay.ask()).endpoints == (ADDRESS,)
