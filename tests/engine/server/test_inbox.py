"""Readers of inboxes are called in turn, some in each round of the event loop, each with all its news."""

import asyncio

import pytest

from inflight_engine.server.requests.inbox import READERS_A_ROUND, Deliveries, Inbox


def inboxes(count):
    """Inboxes, and the calls of their readers: (which, its news)."""
    deliveries, calls = Deliveries(), []
    made = [Inbox(deliveries) for _ in range(count)]
    for number, inbox in enumerate(made):
        inbox.read(lambda news, number=number: calls.append((number, news)))
    return made, calls


async def test_a_reader_gets_each_generation_once_in_the_order_of_their_first_news():
    (inbox,), calls = inboxes(1)
    for generation in "bab":
        inbox.put(generation)
    assert calls == []
    await asyncio.sleep(0)
    assert calls == [(0, ["b", "a"])]
    await asyncio.sleep(0)
    assert len(calls) == 1


async def test_news_from_before_there_was_a_reader_are_delivered():
    inbox, calls = Inbox(Deliveries()), []
    inbox.put("a")
    await asyncio.sleep(0)
    inbox.read(calls.append)
    inbox.put("b")
    await asyncio.sleep(0)
    assert calls == [["a", "b"]]


async def test_what_else_the_loop_has_to_do_waits_for_some_readers_and_not_for_all():
    made, calls = inboxes(2 * READERS_A_ROUND + 1)
    for inbox in made:
        inbox.put("a")
    for delivered in (READERS_A_ROUND, 2 * READERS_A_ROUND, len(made)):
        await asyncio.sleep(0)
        assert [number for number, _ in calls] == [*range(delivered)]


async def test_what_comes_while_an_inbox_waits_for_its_turn_is_delivered_with_the_rest_and_costs_no_other_its_turn():
    made, calls = inboxes(READERS_A_ROUND + 2)
    for inbox in made:
        inbox.put("a")
    await asyncio.sleep(0)
    made[0].put("b")
    made[-1].put("b")
    await asyncio.sleep(0)
    assert calls[READERS_A_ROUND:] == [
        (READERS_A_ROUND, ["a"]),
        (READERS_A_ROUND + 1, ["a", "b"]),
        (0, ["b"]),
    ]


async def test_a_closed_inbox_calls_nobody():
    (inbox,), calls = inboxes(1)
    inbox.put("a")
    inbox.close()
    inbox.put("b")
    await asyncio.sleep(0)
    assert calls == []


async def test_a_reader_may_have_news_for_another_one():
    deliveries, calls = Deliveries(), []
    first, second = Inbox(deliveries), Inbox(deliveries)
    first.read(lambda _: second.put("b"))
    second.read(calls.append)
    first.put("a")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert calls == [["b"]]


async def test_a_reader_that_raises_keeps_no_other_from_its_news():
    raised = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context["exception"]))
    deliveries, calls = Deliveries(), []
    failing, other = Inbox(deliveries), Inbox(deliveries)

    def fail(_):
        raise OSError("gone")

    failing.read(fail)
    other.read(calls.append)
    failing.put("a")
    other.put("a")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert calls == [["a"]]
    with pytest.raises(OSError, match="gone"):
        raise raised[0]
