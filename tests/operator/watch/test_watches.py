"""Watches that fill the cache, and kinds that come and go while the operator runs. The API server is a stand-in."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_base.kube.changes import HistoryError
from inflight_base.kube.reflector import ABSENT_SECONDS, LONGEST_BACK_OFF
from inflight_operator.observe.cache import ClusterCache
from inflight_operator.watch.watches import POLL_SECONDS, WATCHED_KINDS, Watches
from tests.base.kube.store import SECONDS, Store
from tests.base.virtual_time import run
from tests.operator.fakes import KEY
from tests.operator.observe.cluster_history import manifest

POD_MONITOR = "monitoring.coreos.com/v1/PodMonitor"


class Running:
    """Returns watches of a store, and the services that they enqueued."""

    def __init__(self, store, *more):
        self.store, self.cache, self.looked = store, ClusterCache(), []
        self.watches = Watches(store, self.cache, self.looked.append, *more)
        self.task = asyncio.create_task(self.watches.run())


@asynccontextmanager
async def running(store, *more):
    one = Running(store, *more)
    await asyncio.wait_for(one.watches.listed(), 10)
    yield one
    assert not one.task.done()
    one.task.cancel()


def body(kind, name, **more):
    """An object without uid and version, which the store gives it."""
    return manifest(kind, name, "", "", **more)


def test_secrets_are_not_read():
    assert {"InferenceService", "Pod", "EndpointSlice", "Deployment", "Service"} <= set(WATCHED_KINDS)
    assert not {"Secret", "PodMonitor"} & set(WATCHED_KINDS)


def test_objects_that_come_change_and_go_ask_for_a_round():
    async def scenario():
        store = Store()
        async with running(store) as one:
            for step in (lambda: store.write(body("Service", "chat")), lambda: store.write(body("Service", "chat"))):
                step()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                assert one.looked == [KEY]
                one.looked.clear()
            assert len(one.cache.children(KEY)) == 1
            store.delete("Service", "team", "chat")
            await asyncio.sleep(POLL_SECONDS)
            assert one.looked == [KEY]
            assert one.cache.children(KEY) == []

    run(scenario())


def test_each_namespace_is_watched_and_keeps_its_own_objects():
    async def scenario():
        store = Store()
        for namespace in ("team", "other", "third"):
            store.write(body("Service", "chat", namespace=namespace))
        async with running(store, ("team", "other")) as one:
            assert ("Pod", "team") in store.listed
            assert ("Pod", "other") in store.listed
            assert one.cache.child(KEY, "Service", "chat") is not None
            assert one.cache.child(("other", "chat"), "Service", "chat") is not None
            assert one.cache.child(("third", "chat"), "Service", "chat") is None
            store.delete("Service", "other", "chat")
            store.expire()
            await asyncio.sleep(LONGEST_BACK_OFF)
            assert one.cache.child(KEY, "Service", "chat") is not None
            assert one.cache.child(("other", "chat"), "Service", "chat") is None

    run(scenario())


def test_an_api_server_whose_versions_went_back_ends_the_watches():
    async def scenario():
        store = Store()
        one = Running(store)
        await one.watches.listed()
        store.version = 3
        store.oldest = 10**9
        store.interrupt()
        with pytest.RaisesGroup(HistoryError):
            await one.task

    run(scenario())


def test_a_kind_that_is_installed_while_the_operator_runs_is_watched_and_forgotten_when_it_goes():
    async def scenario():
        store = Store()
        store.refused = {"PodMonitor": 404, "InferencePool": 404}
        async with running(store) as one:
            assert one.watches.available == frozenset()
            del store.refused["PodMonitor"]
            store.write(body("PodMonitor", "chat"))
            await asyncio.sleep(ABSENT_SECONDS)
            assert one.watches.available == {POD_MONITOR}
            assert len(one.cache.children(KEY)) == 1
            store.refused["PodMonitor"] = 404
            store.interrupt()
            await asyncio.sleep(LONGEST_BACK_OFF)
            assert one.watches.available == frozenset()
            assert one.cache.children(KEY) == []

    run(scenario())


@pytest.mark.parametrize(("status", "is_there"), [(403, False), (429, True), (503, True), (0, True)])
def test_an_optional_kind_that_is_not_listed_does_not_block_the_start(caplog, status, is_there):
    """Answers other than missing or forbidden must not remove its objects, nor the children rendered with it. 0: no
    answer."""

    async def scenario():
        store = Store()
        store.refused = {"PodMonitor": status}
        async with running(store) as one:
            assert one.watches.available - {POD_MONITOR} == {"inference.networking.k8s.io/v1/InferencePool"}
            assert (POD_MONITOR in one.watches.available) is is_there

    run(scenario())
    assert (f"(HTTP {status})" if status else "waiting for the API server") in caplog.text


def test_a_kind_that_must_exist_and_may_not_be_listed_blocks_the_start(caplog):
    async def scenario():
        store = Store()
        store.refused = {"Service": 403}
        one = Running(store)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(one.watches.listed(), 60)
        await asyncio.wait_for(one.watches.listed(["InferenceService"]), 1)
        store.refused.clear()
        await asyncio.wait_for(one.watches.listed(), 10)
        one.task.cancel()

    run(scenario())
    assert "waiting for the API server: GET: refused (HTTP 403)" in caplog.text


def test_a_kind_that_the_operator_may_not_use_is_not_listed():
    async def scenario():
        store = Store()
        async with running(store, (), ("PodMonitor",)) as one:
            assert one.watches.available == {POD_MONITOR}
            assert ("InferencePool", None) not in store.listed

    run(scenario())


def test_what_a_leader_wrote_last_is_read_before_the_first_round_of_the_next():
    async def scenario():
        store = Store()
        async with running(store) as one:
            store.write(body("Deployment", "chat"))  # the watch has not reported it yet
            catching_up = asyncio.create_task(one.watches.catch_up())
            store.interrupt()
            await catching_up
            assert one.cache.child(KEY, "Deployment", "chat") is not None

    run(scenario())


NAMES = st.sampled_from("abc")
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["write", "delete"]), NAMES),
        st.tuples(st.just("write and answer"), NAMES, st.sampled_from([0.0, SECONDS, 1.0, 20.0])),
        st.tuples(st.sampled_from(["interrupt", "expire"])),
        st.tuples(st.just("refuse"), st.sampled_from([0, 410, 500])),
        st.tuples(st.just("accept")),
        st.tuples(st.just("sleep"), st.sampled_from([SECONDS / 2, SECONDS, 1.0, 10.0])),
    ),
    max_size=40,
)


@given(st.sampled_from(["InferenceService", "Deployment", "Pod"]), OPERATIONS, st.sampled_from([(), ("team", "other")]))
def test_whatever_is_interrupted_and_answered_late_the_cache_ends_at_the_truth(kind, operations, namespaces):
    """Answers to writes reach the cache before or after the events of the same writes, and after deletions."""

    async def scenario():
        store = Store()
        one = Running(store, namespaces)
        for name in "ab":
            store.write(body(kind, name))
        loop = asyncio.get_running_loop()
        for what, *values in operations:
            if what == "write":
                store.write(body(kind, values[0], status={"phase": f"at {store.version}"}))
            elif what == "write and answer":
                written = store.write(body(kind, values[0], status={"phase": f"at {store.version}"}))
                loop.call_later(values[1], one.cache.put, kind, written)
            elif what == "delete":
                store.delete(kind, "team", values[0])
            elif what == "refuse":
                store.refused[kind] = values[0]
                store.interrupt()
            elif what == "accept":
                store.refused.clear()
            elif what == "sleep":
                await asyncio.sleep(values[0])
            else:
                getattr(store, what)()
        store.refused.clear()
        await asyncio.sleep(60)
        now = {name: one for (of, _, name), one in store.objects.items() if of == kind}
        held = {key.name: (entry.uid, entry.version) for key, entry in one.cache._entries[kind].items()}
        assert held == {
            name: (one["metadata"]["uid"], int(one["metadata"]["resourceVersion"])) for name, one in now.items()
        }
        if kind == "Pod":
            assert [pod.name for pod in one.cache.pods(KEY)] == sorted(now)
        elif kind == "Deployment":
            assert {child["metadata"]["name"] for child in one.cache.children(KEY)} == set(now)
        one.task.cancel()

    run(scenario())
