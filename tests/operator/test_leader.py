"""The election with a clock of its own: whatever fails when, two processes never act at once."""

import asyncio
import copy
import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_base.kube.errors import KubeApiError
from inflight_operator.leader import LEASE_SECONDS, RENEW_DEADLINE_SECONDS, RETRY_SECONDS, Leadership, LeaseLostError
from inflight_operator.loop_thread import LoopThread
from tests.base.virtual_time import run

STOPPING = LEASE_SECONDS - RENEW_DEADLINE_SECONDS - 0.1
"""Seconds that an action takes to end in these tests: nearly all that it has."""


class LeaseStore:
    """A stand-in for the API server: one Lease with optimistic locking."""

    def __init__(self):
        self.lease = None
        self.version = 0

    def write(self, manifest, expected):
        if (self.lease or {}).get("metadata", {}).get("resourceVersion") != expected:
            raise KubeApiError("PUT", 404 if self.lease is None else 409, "conflict")
        self.version += 1
        self.lease = copy.deepcopy(manifest)
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        return copy.deepcopy(self.lease)

    def delete(self):
        self.lease = None

    @property
    def holder(self):
        return ((self.lease or {}).get("spec") or {}).get("holderIdentity")


class Line:
    """A process's connection to the store. Each fault is (begin, end, kind): calls hang, or are answered with 500,
    before or after the store has taken them."""

    def __init__(self, store, faults=()):
        self.store = store
        self.faults = faults

    async def _pass(self, part):
        now = asyncio.get_running_loop().time()
        for begin, end, kind in self.faults:
            if begin <= now < end and kind.startswith(part):
                if kind.endswith("hangs"):
                    await asyncio.Event().wait()
                raise KubeApiError("", 500, "fault")
        await asyncio.sleep(0.05)

    async def _call(self, what):
        await self._pass("request")
        answer = what()
        await self._pass("answer")
        return answer

    async def get(self, kind, namespace, name):
        return await self._call(lambda: copy.deepcopy(self.store.lease))

    async def create(self, manifest):
        return await self._call(lambda: self.store.write(manifest, None))

    async def replace(self, manifest):
        return await self._call(lambda: self.store.write(manifest, manifest["metadata"]["resourceVersion"]))


def elected(line, name, **settings):
    """Returns one process's part in the election, on the virtual clock."""
    return Leadership(line, "team", name, clock=asyncio.get_running_loop().time, **settings)


class Actors:
    """The processes that act. An action ends slowly, and counts until it has ended."""

    def __init__(self):
        self.acting = set()
        self.begun = []

    def of(self, name, store=None):
        async def act():
            assert not self.acting, f"{name} begins while {self.acting} acts"
            self.acting.add(name)
            self.begun.append((asyncio.get_running_loop().time(), name))
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(STOPPING)
                if store is not None:
                    assert store.holder == name, "the Lease was released before the action had ended"
                self.acting.discard(name)

        return act


async def member(leadership, act, lost):
    """A process that is started again each time it ends, as its container is."""
    while True:
        try:
            await leadership().lead(act)
        except LeaseLostError as error:
            lost.append(error)
        await asyncio.sleep(1)


FAULTS = st.lists(
    st.tuples(
        st.integers(0, 60),
        st.integers(1, 30),
        st.sampled_from(["request hangs", "request fails", "answer hangs", "answer fails"]),
    ).map(lambda fault: (fault[0], fault[0] + fault[1], fault[2])),
    max_size=4,
)


@given(st.lists(FAULTS, min_size=2, max_size=3), st.integers(0, 3))
def test_two_never_act_or_may_write_at_once_and_after_the_last_fault_one_does(faults, apart):
    processes_take_turns(faults, apart, ())


@given(st.lists(st.floats(10, 52), min_size=1, max_size=3), st.integers(0, 3))
@settings(max_examples=30)
def test_two_never_act_or_may_write_at_once_if_a_lease_that_all_have_seen_is_deleted(deletions, apart):
    """Also after the line of its holder was cut, until another takes it."""
    processes_take_turns([[(40, 1000, "request hangs")], [], []], apart, deletions)


def processes_take_turns(faults, apart, deletions):
    async def scenario():
        store, actors, lost, tasks, parts = LeaseStore(), Actors(), [], [], {}
        for number, one in enumerate(faults):
            name = f"operator-{number}"
            line = Line(store, one)

            def leadership(line=line, name=name):
                parts[name] = elected(line, name)
                return parts[name]

            tasks.append(asyncio.create_task(member(leadership, actors.of(name), lost)))
            await asyncio.sleep(apart)
        for moment in deletions:
            asyncio.get_running_loop().call_at(moment, store.delete)
        end = asyncio.get_running_loop().time() + 90 + LEASE_SECONDS + STOPPING + 10
        while asyncio.get_running_loop().time() < end:
            assert sum(one.leads() for one in parts.values()) <= 1
            await asyncio.sleep(0.5)
        assert len(actors.acting) == 1
        for task in tasks:
            assert not task.done(), task.exception()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    run(scenario())


def test_a_leader_that_cannot_renew_has_ended_before_the_next_one_begins():
    async def scenario():
        store, actors, lost = LeaseStore(), Actors(), []
        cut = Line(store, [(20, 1000, "request hangs")])
        first = asyncio.create_task(member(lambda: elected(cut, "first"), actors.of("first"), lost))
        await asyncio.sleep(1)
        second = asyncio.create_task(member(lambda: elected(Line(store), "second"), actors.of("second"), lost))
        await asyncio.sleep(60)
        assert "was not renewed for 10 s" in str(lost[0])
        (_, one), (begun, two) = actors.begun
        assert (one, two) == ("first", "second")
        assert 20 - RETRY_SECONDS + LEASE_SECONDS <= begun <= 20 + LEASE_SECONDS + 2 * RETRY_SECONDS
        assert actors.acting == {"second"}
        first.cancel()
        second.cancel()

    run(scenario())


def test_on_cancellation_the_action_has_ended_before_the_lease_is_released():
    async def scenario():
        store, actors = LeaseStore(), Actors()
        leading = asyncio.create_task(elected(Line(store), "first").lead(actors.of("first", store)))
        await asyncio.sleep(1)
        leading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leading
        assert not actors.acting
        assert store.holder is None

    run(scenario())


def test_a_lease_that_another_took_ends_the_action_and_is_not_released():
    async def scenario():
        store, actors = LeaseStore(), Actors()
        leading = asyncio.create_task(elected(Line(store), "first").lead(actors.of("first")))
        await asyncio.sleep(1)
        store.write({**store.lease, "spec": {**store.lease["spec"], "holderIdentity": "x"}}, str(store.version))
        with pytest.raises(LeaseLostError, match="held by another process"):
            await leading
        assert not actors.acting
        assert store.holder == "x"

    run(scenario())


@pytest.mark.parametrize("loss", ["another took it", "unhealthy"])
def test_who_lost_the_lease_may_not_write_while_the_action_ends(loss):
    async def scenario():
        store, problem, may_write = LeaseStore(), [""], []
        first = elected(Line(store), "first", problem=lambda: problem[0])

        async def act():
            try:
                await asyncio.Event().wait()
            finally:
                may_write.append(first.leads())

        leading = asyncio.create_task(first.lead(act))
        await asyncio.sleep(1)
        assert first.leads()
        if loss == "unhealthy":
            problem[0] = "the event loop has not turned for 30 s"
        else:
            store.write({**store.lease, "spec": {**store.lease["spec"], "holderIdentity": "x"}}, str(store.version))
        with pytest.raises(LeaseLostError):
            await leading
        assert may_write == [False]

    run(scenario())


def test_a_deleted_lease_stays_with_the_leader_that_acts():
    async def scenario():
        store, actors, lost = LeaseStore(), Actors(), []
        tasks = []
        for name in ("first", "second"):
            one = member(lambda name=name: elected(Line(store), name), actors.of(name), lost)
            tasks.append(asyncio.create_task(one))
            await asyncio.sleep(1.3)
        for pause in (1.0, 2.5, 5.2):
            store.delete()
            await asyncio.sleep(pause)
        assert not lost
        assert not any(task.done() for task in tasks)
        assert actors.acting == {store.holder} == {"first"}

    run(scenario())


def test_a_deleted_lease_of_a_leader_that_is_gone_is_taken_after_its_time():
    async def scenario():
        store, actors, lost = LeaseStore(), Actors(), []
        cut = Line(store, [(5, 1000, "request hangs")])
        tasks = [asyncio.create_task(member(lambda: elected(cut, "first"), actors.of("first"), lost))]
        await asyncio.sleep(1)
        tasks += [asyncio.create_task(member(lambda: elected(Line(store), "second"), actors.of("second"), lost))]
        await asyncio.sleep(5)
        store.delete()
        await asyncio.sleep(LEASE_SECONDS + 2 * RETRY_SECONDS)
        assert actors.acting == {"second"}
        assert not any(task.done() for task in tasks)

    run(scenario())


def test_a_lease_without_a_spec_is_taken():
    async def scenario():
        store, actors = LeaseStore(), Actors()
        store.write({"metadata": {"name": "inflight-operator", "namespace": "team"}}, None)
        leading = asyncio.create_task(elected(Line(store), "first").lead(actors.of("first")))
        await asyncio.sleep(1)
        assert not leading.done()
        assert actors.acting == {store.holder} == {"first"}

    run(scenario())


@pytest.mark.parametrize("again", [0, 0.1, 2, STOPPING + 0.1])
def test_a_process_that_is_cancelled_twice_ends_the_action_and_releases_the_lease(again):
    async def scenario():
        store, actors = LeaseStore(), Actors()
        leading = asyncio.create_task(elected(Line(store), "first").lead(actors.of("first", store)))
        await asyncio.sleep(1)
        leading.cancel()
        await asyncio.sleep(again)
        leading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leading
        assert not actors.acting
        assert store.holder is None
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(scenario())


@pytest.mark.parametrize("after", [0.02, 0.07, 0.12, 0.17])
def test_a_lease_that_was_taken_as_the_process_was_cancelled_is_released(after):
    async def scenario():
        store = LeaseStore()
        first = elected(Line(store, [(0.08, 0.12, "answer fails")]), "first")
        leading = asyncio.create_task(first.lead(asyncio.Event().wait))
        await asyncio.sleep(after)
        leading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leading
        assert store.holder is None
        assert not first.leads()

    run(scenario())


def test_what_ends_the_action_comes_out_after_the_lease_was_released():
    async def fails():
        raise ValueError("broken")

    async def scenario():
        store = LeaseStore()
        with pytest.raises(ValueError, match="broken"):
            await elected(Line(store), "first").lead(fails)
        assert store.holder is None

    run(scenario())


def test_a_process_that_was_blocked_past_the_deadline_may_not_write_even_before_it_stops():
    async def scenario():
        leadership = elected(Line(LeaseStore()), "first")
        seen = []

        async def act():
            seen.append(leadership.leads())
            asyncio.get_running_loop().now += RENEW_DEADLINE_SECONDS  # as a computation that blocks the loop
            seen.append(leadership.leads())
            await asyncio.Event().wait()

        assert not leadership.leads()
        with pytest.raises(LeaseLostError):
            await leadership.lead(act)
        assert seen == [True, False]
        assert not leadership.leads()

    run(scenario())


def test_a_process_that_is_unhealthy_loses_its_lease_and_takes_none():
    async def scenario():
        store, actors, problem = LeaseStore(), Actors(), ["the event loop has not turned for 30 s"]
        first = elected(Line(store), "first", problem=lambda: problem[0])
        leading = asyncio.create_task(first.lead(actors.of("first")))
        await asyncio.sleep(60)
        assert store.lease is None
        problem[0] = ""
        await asyncio.sleep(10)
        assert first.leads()
        problem[0] = "the event loop has not turned for 30 s"
        with pytest.raises(LeaseLostError, match="is not renewed: the event loop has not turned for 30 s"):
            await leading
        assert not actors.acting

    run(scenario())


def test_a_renewal_is_one_call_and_a_conflict_costs_a_second_look():
    async def scenario():
        store, actors = LeaseStore(), Actors()
        line, calls = Line(store), []
        for name in ("get", "replace"):
            plain = getattr(line, name)

            async def counted(*arguments, plain=plain, name=name):
                calls.append(name)
                return await plain(*arguments)

            setattr(line, name, counted)
        leading = asyncio.create_task(elected(line, "first").lead(actors.of("first")))
        await asyncio.sleep(5 * RETRY_SECONDS)
        assert set(calls[1:]) == {"replace"}
        store.write({**store.lease, "metadata": {**store.lease["metadata"], "labels": {"a": "b"}}}, str(store.version))
        calls.clear()
        await asyncio.sleep(2 * RETRY_SECONDS)
        assert calls[:3] == ["replace", "get", "replace"]
        assert actors.acting == {"first"}
        assert store.lease["metadata"]["labels"] == {"a": "b"}
        leading.cancel()
        with suppress(asyncio.CancelledError):
            await leading

    run(scenario())


async def test_a_leader_whose_loop_is_blocked_for_longer_than_the_lease_keeps_it(monkeypatch):
    monkeypatch.setattr("inflight_operator.leader.RETRY_SECONDS", 0.02)
    monkeypatch.setattr("inflight_operator.leader.RENEW_DEADLINE_SECONDS", 3.0)
    seen, store = [], LeaseStore()
    with LoopThread("lease") as thread:
        leadership = Leadership(Line(store), "team", "first", beside=thread.run)

        async def act():
            begun, before = time.monotonic(), store.version
            # As a computation that blocks the loop, on a busy machine for long enough to renew.
            while time.monotonic() < begun + 3.5 or (store.version < before + 10 and time.monotonic() < begun + 60):
                time.sleep(0.02)  # noqa: ASYNC251
            seen.append(leadership.leads())

        await leadership.lead(act)
    assert seen == [True]
