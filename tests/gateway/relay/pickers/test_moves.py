"""Services of a relay whose owner among several pickers changes."""

from __future__ import annotations

import asyncio

import pytest

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.link.wire import (
    ACKNOWLEDGED_S,
    BEAT_S,
    MAX_TURNS,
    SILENT_S,
    Ask,
    Elsewhere,
    Ended,
    GatewayPod,
    Gateways,
    Go,
    Hello,
    Progress,
    Refuse,
    Released,
    Running,
)
from inflight_gateway.relay.pickers.health import FIRST_TRIAL_S, TICK_S
from inflight_gateway.request.body import Body
from tests.gateway.relay.pickers.stand_ins import ADDRESS, CHAT, PICKED, go, held, report, silent

OTHERS = [ServiceKey("a", f"other-{number}") for number in range(30)]


@pytest.fixture(params=[2, 3])
async def two_or_three(make, request):
    return await make(request.param)


async def stop_owner(pods, how):
    """Lets the owner of CHAT fail; returns after the relay has noticed."""
    owner = pods.owner()
    if how == "killed":
        owner.kill()
        await asyncio.sleep(0.01)
    else:
        owner.hang()
        await asyncio.sleep(SILENT_S + 0.2)
    return owner


async def until(condition):
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def test_the_owner_is_asked_and_no_other(two_or_three):
    pods = two_or_three
    assert (await pods.relay.ask()).endpoints == (PICKED,)
    assert [picker for picker in pods.pickers if picker.of(Ask)] == [pods.owner()]
    assert all(picker.of(Hello) == [Hello("relay-1")] for picker in pods.pickers)
    assert pods.owner().of(Ask)[0].without == ()
    pods.relay.end()
    await asyncio.sleep(0.01)
    assert pods.owner().of(Ended)
    assert not pods.next().of(Ended)


@pytest.mark.parametrize("how", ["killed", "hung"])
async def test_what_runs_and_what_waits_moves_to_the_next_owner_in_its_order(two_or_three, how):
    pods, relay, to = two_or_three, two_or_three.relay, two_or_three.next()
    for number in (1, 2):
        await relay.ask(number, body=Body(prompt_tokens=5, blocks=b"12345678"))
    relay.asks.answering("r-2", "10.0.0.7:1", (), lambda: 12)
    pods.owner().answer = to.answer = held
    # The third one arrived last, and was asked for first.
    answers = {number: relay.ask(number, age_s=age) for number, age in ((3, 0.0), (4, 5.0), (5, 2.0))}
    await asyncio.sleep(0.05)
    owner = await stop_owner(pods, how)
    running, waiting = to.of(Running), to.of(Ask)
    assert [(one.ask.id, one.address, one.tokens, one.ask.body.blocks) for one in running] == [
        ("r-1", PICKED, 0, b""),
        ("r-2", "10.0.0.7:1", 12, b""),
    ]
    assert [ask.id for ask in waiting] == ["r-4", "r-5", "r-3"]
    assert all(ask.admitted and ask.without == (owner.name,) and ask.turns == 0 for ask in waiting)
    assert [round(ask.age_s - ask.waited_s) for ask in waiting] == [5, 2, 0]
    assert to.messages.index(running[-1]) < to.messages.index(waiting[0])
    to.send(*(go(ask)[0] for ask in waiting))
    for answer in answers.values():
        assert (await answer).endpoints == (PICKED,)


async def test_requests_of_other_services_stay(make):
    pods = await make(3)
    for picker in pods.pickers:
        picker.answer = held
    for number, service in enumerate([CHAT, *OTHERS]):
        pods.relay.ask(number, service=service)
    await asyncio.sleep(0.05)
    before = {picker.name: set(picker.has) for picker in pods.pickers}
    owner = await stop_owner(pods, "killed")
    for picker in pods.pickers:
        assert picker is owner or before[picker.name] < set(picker.has)
        assert not picker.of(Released)


async def test_a_request_that_was_not_acknowledged_moves_without_being_admitted(two_or_three):
    pods = two_or_three
    pods.owner().answer = silent
    pods.owner().hang()
    begun = asyncio.get_running_loop().time()
    assert (await pods.relay.ask()).endpoints == (PICKED,)
    assert ACKNOWLEDGED_S < asyncio.get_running_loop().time() - begun < SILENT_S + 2 * TICK_S
    (ask,) = pods.next().of(Ask)
    assert not ask.admitted
    assert ask.without == (pods.owner().name,)


async def test_a_hung_owner_that_wakes_hears_that_its_requests_are_elsewhere(two_or_three):
    relay, owner, to = two_or_three.relay, two_or_three.owner(), two_or_three.next()
    owner.answer = to.answer = held
    answer = relay.ask(1)
    await asyncio.sleep(0.05)
    owner.hang()
    relay.ask(2)
    await asyncio.sleep(SILENT_S + 0.2)
    assert set(to.has) == {"r-1", "r-2"}
    assert owner.asked == ["r-1"]
    owner.wake()
    owner.send(Go("r-1", 1, ("10.0.0.66:1",)))  # late
    await asyncio.sleep(0.01)
    assert owner.of(Released) == [Released(CHAT)]
    assert not owner.has
    assert not answer.done()
    to.send(Go("r-1", 1, (PICKED,)))
    assert (await answer).endpoints == (PICKED,)
    relay.end(1)
    await asyncio.sleep(0.01)
    assert to.of(Ended) == [Ended(report(1))]
    assert not owner.of(Ended)


async def test_an_owner_that_is_back_gets_its_services_after_a_trial(two_or_three):
    pods, relay, owner, to = two_or_three, two_or_three.relay, two_or_three.owner(), two_or_three.next()
    owner.answer = to.answer = held
    relay.ask(1)
    await asyncio.sleep(0.05)
    await stop_owner(pods, "killed")
    await owner.start()
    await asyncio.sleep(FIRST_TRIAL_S / 2)
    assert set(to.has) == {"r-1"}
    await asyncio.sleep(FIRST_TRIAL_S + BEAT_S)
    assert set(owner.has) == {"r-1"}
    assert to.of(Released) == [Released(CHAT)]
    assert not to.has


async def test_an_owner_that_fails_again_and_again_is_trusted_later_each_time(make):
    pods = await make(2)
    owner, to = pods.owner(), pods.next()
    owner.answer = to.answer = held
    pods.relay.ask(1)
    await asyncio.sleep(0.05)
    away = []
    for _ in range(7):
        owner.hang()
        await asyncio.sleep(SILENT_S + 0.3)
        owner.wake()
        begun = asyncio.get_running_loop().time()
        await until(lambda: owner.has)
        away.append(round(asyncio.get_running_loop().time() - begun))
    assert away == [1, 2, 4, 8, 16, 30, 30]
    await asyncio.sleep(61)
    await stop_owner(pods, "killed")
    await owner.start()
    await asyncio.sleep(2)
    assert owner.has


async def test_a_picker_that_starves_does_not_draw_services_to_and_fro(make):
    """Late beats begin its trial anew."""
    pods = await make(2)
    owner, to = pods.owner(), pods.next()
    owner.answer = to.answer = held
    pods.relay.ask(1)
    await asyncio.sleep(0.05)
    for number in range(30):
        owner.hang()
        await asyncio.sleep(SILENT_S)
        owner.wake()
        await asyncio.sleep(0.2)
        pods.relay.ask(10 + number)
    assert len(owner.of(Released)) == 1
    assert "r-1" in to.has


async def test_where_all_pickers_fail_the_owner_is_asked_while_it_is_heard(make):
    pods = await make(2)
    for picker in pods.pickers:
        picker.hang()
    await asyncio.sleep(SILENT_S + 1)
    assert (await pods.relay.ask(1)).endpoints == (ADDRESS,)  # alone
    for picker in pods.pickers:
        picker.wake()
    await asyncio.sleep(0.3)
    assert (await pods.relay.ask(2)).endpoints == (PICKED,)
    assert "r-2" in pods.owner().asked


async def test_alone_only_when_no_picker_can_be_reached(make):
    pods = await make(3)
    for number, picker in enumerate([pods.owner(), pods.next()]):
        picker.kill()
        await asyncio.sleep(0.1)
        assert (await pods.relay.ask(number)).endpoints == (PICKED,)
    last = next(one for one in pods.pickers if one not in (pods.owner(), pods.next()))
    last.kill()
    await asyncio.sleep(0.1)
    assert (await pods.relay.ask(7)).endpoints == (ADDRESS,)
    await last.start()
    await asyncio.sleep(1.5)
    # What the relay picked alone, too; the earlier ones are at their engines still.
    assert {one.ask.id for one in last.of(Running)} == {"r-0", "r-1", "r-7"}


async def test_a_pod_that_drains_is_released_and_its_stream_closed_after_that(make):
    pods = await make(3)
    owner = next(picker for picker in pods.pickers if picker is not pods.own)
    service = next(one for one in OTHERS if pods.relay.pickers._view.owner(one).name == owner.name)
    for picker in pods.pickers:
        picker.answer = held
    pods.relay.ask(1, service=service)
    await asyncio.sleep(0.05)
    pods.ready(*(picker for picker in pods.pickers if picker is not owner))
    await asyncio.sleep(0.05)
    assert owner.of(Released) == [Released(service)]
    assert not owner.streams
    assert [picker.name for picker in pods.pickers if "r-1" in picker.has] != []
    assert pods.relay.alone.relays == 4


async def test_the_own_pod_is_asked_while_it_is_the_only_one_and_not_ready(pods):
    pods.ready()
    await asyncio.sleep(0.05)
    assert (await pods.relay.ask()).endpoints == (PICKED,)
    assert pods.own.of(Ask)[-1].without == ()


async def test_a_pod_that_is_not_ready_gets_no_questions_while_another_one_is(make):
    pods = await make(2)
    pods.ready(pods.pickers[1])
    await asyncio.sleep(0.05)
    for number, service in enumerate(OTHERS):
        await pods.relay.ask(number, service=service)
    assert len(pods.pickers[1].of(Ask)) == len(OTHERS)


async def held_without_a_pod(make):
    """Requests of all services that wait at two pods, and a third one that is not ready yet."""
    pods = await make(3)
    new = pods.owner() if pods.owner() is not pods.own else pods.next()
    pods.ready(*(picker for picker in pods.pickers if picker is not new))
    await asyncio.sleep(0.05)
    for picker in pods.pickers:
        picker.answer = held
    for number, service in enumerate([CHAT, *OTHERS]):
        pods.relay.ask(number, service=service)
    return pods, new


async def test_a_new_pod_takes_its_services_over(make):
    pods, new = await held_without_a_pod(make)
    await asyncio.sleep(0.05)
    assert not new.has
    pods.ready(*pods.pickers)
    await asyncio.sleep(0.5)
    assert new.has
    assert sum(len(picker.has) for picker in pods.pickers) == 1 + len(OTHERS)
    assert not {one for picker in pods.pickers if picker is not new for one in picker.has} & set(new.has)


async def test_a_pod_with_a_new_address_is_connected_to_there(make):
    pods = await make(2)
    other = pods.pickers[1]
    other.kill()
    other.address = "127.0.0.1:7999"
    await other.start()
    pods.ready(*pods.pickers)
    await asyncio.sleep(2)
    assert len(other.of(Hello)) == 2
    assert len(pods.relay.pickers._tasks) == 2


async def test_without_the_own_picker_the_known_pods_are_asked(make):
    pods = await make(3)
    pods.own.kill()
    await asyncio.sleep(0.1)
    for number, service in enumerate(OTHERS):
        assert (await pods.relay.ask(number, service=service)).endpoints == (PICKED,)
    asked = [len(picker.of(Ask)) for picker in pods.pickers]
    assert asked[0] == 0
    assert min(asked[1:]) > 3


async def test_without_a_key_only_the_own_picker_is_asked_and_the_log_says_so(make, caplog):
    pods = await make(3, key=None)
    for number, service in enumerate(OTHERS):
        assert (await pods.relay.ask(number, service=service)).endpoints == (PICKED,)
    assert len(pods.own.of(Ask)) == len(OTHERS)
    assert pods.own.of(Ask)[0].without == ("gw-1", "gw-2")
    assert caplog.text.count("there is no gateway key") == 1


async def test_other_pickers_are_not_believed_about_keys_and_about_pods_while_the_own_one_is_trusted(make):
    pods = await make(2)
    pods.pickers[1].send(Gateways("gw-1", (), 7), *pods.own.welcome[:1])
    await asyncio.sleep(0.05)
    assert pods.relay.alone.relays == 4
    assert len(pods.relay.keys) == 1


@pytest.mark.parametrize("how", ["killed", "hung"])
async def test_without_the_own_picker_others_tell_the_ready_pods_until_it_is_trusted_again(make, how):
    pods = await make(3)
    first, second = pods.pickers[1:]
    if how == "killed":
        pods.own.kill()
    else:
        pods.own.hang()
    first.send(Gateways("gw-1", (first.pod,), 9))
    await asyncio.sleep(SILENT_S + 2 * TICK_S)
    for number, service in enumerate(OTHERS):
        await pods.relay.ask(number, service=service)
    assert len(first.of(Ask)) == len(OTHERS)
    assert pods.relay.alone.relays == 2  # the own picker counts the relays of a pod
    pods.ready(second)
    if how == "killed":
        await pods.own.start()
    else:
        pods.own.wake()
    await asyncio.sleep(FIRST_TRIAL_S + 4 * BEAT_S)
    for number, service in enumerate(OTHERS):
        await pods.relay.ask(len(OTHERS) + number, service=service)
    assert len(second.of(Ask)) == len(OTHERS)


async def test_a_picker_that_knows_of_no_ready_pod_is_still_asked_where_it_is_known(make):
    """Such a picker names itself without an address."""
    pods = await make(3)
    first = pods.pickers[1]
    pods.own.kill()
    first.send(Gateways("gw-1", (GatewayPod(first.name, ""),), 9))
    await asyncio.sleep(SILENT_S + 2 * TICK_S)
    for number, service in enumerate(OTHERS):
        await pods.relay.ask(number, service=service)
    assert len(first.of(Ask)) == len(OTHERS)


async def test_a_new_pod_that_cannot_be_reached_gets_no_questions_and_nothing_is_picked_alone(make):
    pods, new = await held_without_a_pod(make)
    new.kill()
    await asyncio.sleep(0.05)
    pods.ready(*pods.pickers)
    answers = [pods.relay.ask(100 + number, service=service) for number, service in enumerate([CHAT, *OTHERS])]
    await asyncio.sleep(3)
    assert not any(answer.done() for answer in answers)
    assert sum(len(picker.has) for picker in pods.pickers if picker is not new) == 2 * (1 + len(OTHERS))


# Pickers that disagree about the owner.


def elsewhere(picker):
    return lambda ask: [Elsewhere(ask.id, ask.attempt, picker.name)]


async def test_a_service_goes_where_a_picker_says_in_its_order_and_stays_there(make):
    pods = await make(2)
    owner, other = pods.owner(), pods.next()
    await pods.relay.ask(1)
    owner.answer = elsewhere(other)
    answers = [pods.relay.ask(number, age_s=10.0 - number) for number in (2, 3, 4)]
    for answer in answers:
        assert (await answer).endpoints == (PICKED,)
    assert owner.of(Released) == [Released(CHAT)]
    assert [one.ask.id for one in other.of(Running)] == ["r-1"]
    assert other.asked == ["r-2", "r-3", "r-4"]
    assert {ask.turns for ask in other.of(Ask)} == {1}
    await pods.relay.ask(5)
    assert other.asked[-1] == "r-5"
    assert not owner.has


async def test_two_pickers_that_name_each_other_are_asked_a_bounded_number_of_times(make):
    pods = await make(2)

    def answer(other):
        return lambda ask: go(ask) if ask.turns >= MAX_TURNS else elsewhere(other)(ask)

    pods.owner().answer, pods.next().answer = answer(pods.next()), answer(pods.owner())
    assert (await pods.relay.ask(1)).endpoints == (PICKED,)
    assert (pods.owner().asked, pods.next().asked) == (["r-1", "r-1"], ["r-1"])
    await pods.relay.ask(2)
    assert pods.owner().asked[-1] == "r-2"
    assert pods.next().asked == ["r-1"]


async def test_a_picker_that_names_an_unknown_pod_is_asked_for_what_it_knows(make):
    pods = await make(2)
    pods.owner().answer = lambda ask: (
        go(ask) if ask.turns >= MAX_TURNS else [Elsewhere(ask.id, ask.attempt, "gw-unknown")]
    )
    assert (await pods.relay.ask()).endpoints == (PICKED,)
    assert [ask.turns for ask in pods.owner().of(Ask)] == [0, MAX_TURNS]


async def test_a_picker_that_always_names_another_one_does_not_keep_a_request(make):
    pods = await make(2)
    pods.owner().answer, pods.next().answer = elsewhere(pods.next()), elsewhere(pods.owner())
    async with asyncio.timeout(30):
        assert (await pods.relay.ask()).endpoints == (ADDRESS,)


async def test_a_service_returns_to_its_owner_when_the_other_picker_fails(make):
    pods = await make(3)
    owner, other = pods.owner(), pods.next()
    owner.answer, other.answer = elsewhere(other), held
    answer = pods.relay.ask(1)
    await asyncio.sleep(0.05)
    owner.answer = go
    other.kill()
    assert (await answer).endpoints == (PICKED,)
    assert owner.of(Ask)[-1].turns == 0


# Attempts and reports.


async def test_a_request_between_two_attempts_is_released_and_reported_to_the_new_owner(make):
    pods = await make(2)
    owner, to = pods.owner(), pods.next()
    await pods.relay.ask(1)
    pods.relay.asks.left("r-1")
    pods.ready(to)
    await asyncio.sleep(0.05)
    assert owner.of(Released) == [Released(CHAT)]
    assert not to.of(Running)
    assert (await pods.relay.ask(1, attempt=2)).endpoints == (PICKED,)
    assert to.asked == ["r-1"]
    pods.relay.end(1)
    await asyncio.sleep(0.05)
    assert to.of(Ended)
    assert not owner.of(Ended)


async def test_a_refusal_of_an_earlier_owner_is_ignored(make):
    pods = await make(2)
    owner, to = pods.owner(), pods.next()
    owner.answer = to.answer = held
    answer = pods.relay.ask(1)
    await asyncio.sleep(0.05)
    owner.send(Refuse("r-1", 1, 503, "no_replica", "late"))
    pods.relay.pickers.take(pods.relay.pickers._own, [Gateways("gw-0", (to.pod,))])
    await asyncio.sleep(0.05)
    assert not answer.done()
    assert set(to.has) == {"r-1"}


async def test_reports_of_refused_heads_go_to_the_own_picker_or_another_one(make):
    pods = await make(2)
    pods.relay.asks.refused(report(1))
    await asyncio.sleep(0.05)
    assert pods.own.of(Ended) == [Ended(report(1))]
    pods.own.kill()
    await asyncio.sleep(0.05)
    pods.relay.asks.refused(report(2))
    await asyncio.sleep(0.05)
    assert pods.pickers[1].of(Ended) == [Ended(report(2))]


async def test_reports_that_a_dead_picker_did_not_get_go_to_the_next_owner(make):
    pods = await make(2)
    await pods.relay.ask(1)
    link = pods.relay.asks._places[CHAT].link
    link._stream.pause_writing()
    pods.relay.end(1)
    pods.owner().kill()
    await asyncio.sleep(0.05)
    assert not pods.owner().of(Ended)
    assert pods.next().of(Ended) == [Ended(report(1))]


async def test_progress_goes_to_the_picker_that_has_the_request(make):
    pods = await make(2)
    await pods.relay.ask(1)
    pods.relay.asks.answering("r-1", PICKED, (), lambda: 9)
    await stop_owner(pods, "killed")
    await asyncio.sleep(1.5)
    assert pods.next().of(Progress) == [Progress((("r-1", 9),))]


async def test_a_relay_that_was_stopped_does_not_take_unread_messages_for_silence(make):
    pods = await make(2)
    pods.owner().answer = held
    pods.relay.ask(1)
    await asyncio.sleep(0.05)
    loop = asyncio.get_running_loop()
    loop.pass_time(60)  # in one turn of the loop
    await asyncio.sleep(3)
    assert not pods.owner().of(Released)
