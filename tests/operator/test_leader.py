"""The election with a clock of its own: whatever fails when, two processes never act at once."""

import asyncio
import copy
import time
from contextlib import suppress

import pytest
from hypothesis import given
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
            raise KubeApiError("PUT", 409, "conflict")
        self.version += 1
        self.lease = copy.deepcopy(manifest)
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        return copy.deepcopy(self.lease)

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
def test_two_never_act_at_once_and_after_the_last_fault_one_does(faults, apart):
    async def scenario():
        store, actors, lost, tasks = LeaseStore(), Actors(), [], []
        for number, one in enumerate(faults):
            name = f"operator-{number}"
            line = Line(store, one)

            def leadership(line=line, name=name):
                return elected(line, name)

            tasks.append(asyncio.create_task(member(leadership, actors.of(name), lost)))
            await asyncio.sleep(apart)
        await asyncio.sleep(90 + LEASE_SECONDS + STOPPING + 10)
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
    monkeypatch.setattr("inflight_operator.leader.RENEW_DEADLINE_SECONDS", 1.0)
    seen = []
    with LoopThread("lease") as thread:
        leadership = Leadership(Line(LeaseStore()), "team", "first", beside=thread.run)

        async def act():
            time.sleep(2)  # noqa: ASYNC251 - as a computation that blocks the loop
            seen.append(leadership.leads())

        await leadership.lead(act)
    assert seen == [True]
