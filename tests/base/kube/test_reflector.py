"""The reflector over a stand-in for the API server: the state of its reader after interruptions."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_base.kube import reflector as reflector_module
from inflight_base.kube.changes import HistoryError
from inflight_base.kube.kinds import Selection
from inflight_base.kube.reflector import ABSENT_SECONDS, LONGEST_BACK_OFF, SILENT_SECONDS, Reflector
from tests.base.kube.store import SECONDS, Store
from tests.base.virtual_time import run


def manifest(name, namespace="team", kind="Pod"):
    return {"kind": kind, "metadata": {"name": name, "namespace": namespace}}


class Reading:
    """A reader that keeps all objects, as its reflector reports them."""

    def __init__(self, store, kind="Pod", **more):
        self.store, self.known, self.batches = store, {}, []
        self.reflector = Reflector(store, Selection(kind), self.take, **more)

    def take(self, changes):
        self.batches.append(dict(changes.objects))
        for key, body in changes.objects.items():
            if body is None:
                self.known.pop(key, None)
            else:
                self.known[key] = body

    def equals_the_store(self):
        selected = self.store._selected(self.reflector.selection, self.store.objects.values())
        return self.known == {(one["metadata"]["namespace"], one["metadata"]["name"]): one for one in selected}


@asynccontextmanager
async def reading(store, *more, **settings):
    one = Reading(store, *more, **settings)
    task = asyncio.create_task(one.reflector.run())
    await asyncio.sleep(1)
    yield one
    assert not task.done()
    task.cancel()


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["write", "write", "delete"]), st.sampled_from("abcde")),
        st.tuples(st.sampled_from(["interrupt", "expire"])),
        st.tuples(st.just("refuse"), st.sampled_from([0, 403, 410, 429, 500])),
        st.tuples(st.just("answer")),
        st.tuples(st.just("sleep"), st.sampled_from([SECONDS / 2, SECONDS, 1.0, 30.0])),
    ),
    max_size=40,
)


@given(OPERATIONS)
def test_whatever_is_interrupted_the_reader_ends_at_the_truth(operations):
    async def scenario():
        store = Store()
        for name in "abc":
            store.write(manifest(name))
        one = Reading(store)
        task = asyncio.create_task(one.reflector.run())
        for what, *values in operations:
            if what == "write":
                store.write(manifest(*values))
            elif what == "delete":
                store.delete("Pod", "team", *values)
            elif what == "refuse":
                store.refused["Pod"] = values[0]
                store.interrupt()
            elif what == "answer":
                store.refused.clear()
            elif what == "sleep":
                await asyncio.sleep(values[0])
            else:
                getattr(store, what)()
        store.refused.clear()
        await asyncio.sleep(3 * LONGEST_BACK_OFF)
        assert one.equals_the_store()
        assert (one.reflector.listed, one.reflector.problem) == (True, "")
        task.cancel()

    run(scenario())


def test_what_was_deleted_while_the_watch_was_cut_goes_with_the_last_page_of_the_list():
    async def scenario():
        store = Store()
        for name in "abcd":
            store.write(manifest(name))
        async with reading(store) as one:
            store.delete("Pod", "team", "a")
            store.expire()
            one.batches.clear()
            await asyncio.sleep(LONGEST_BACK_OFF)
            assert [set(batch) for batch in one.batches] == [
                {("team", "b"), ("team", "c")},
                {("team", "d"), ("team", "a")},
            ]
            assert one.equals_the_store()

    run(scenario())


def test_while_the_api_server_is_away_all_that_is_known_stays_and_the_problem_is_told():
    async def scenario():
        store = Store()
        store.write(manifest("a"))
        async with reading(store) as one:
            store.refused["Pod"] = 0
            store.interrupt()
            store.delete("Pod", "team", "a")
            await asyncio.sleep(60)
            assert list(one.known) == [("team", "a")]
            assert one.reflector.problem == "GET: refused"
            lists = len(store.listed)
            store.refused.clear()
            await asyncio.sleep(LONGEST_BACK_OFF)
            assert (one.known, one.reflector.problem) == ({}, "")
            assert len(store.listed) == lists, "the watch resumes"

    run(scenario())


def test_after_a_silence_everything_is_listed_again():
    async def scenario():
        store = Store()
        store.write(manifest("a"))
        async with reading(store) as one:
            for _ in range(10):
                await asyncio.sleep(SILENT_SECONDS / 2)
                store.write(manifest("a"))
                await asyncio.sleep(0.1)
                store.interrupt()
            assert len(store.listed) == 1
            await asyncio.sleep(SILENT_SECONDS + 1)
            store.interrupt()
            await asyncio.sleep(LONGEST_BACK_OFF)
            assert len(store.listed) == 2
            assert one.equals_the_store()

    run(scenario())


def test_a_watch_that_expires_at_once_after_each_list_does_not_become_a_storm():
    async def scenario():
        store = Store()
        store.oldest = 10**9
        async with reading(store):
            await asyncio.sleep(60)
            assert len(store.listed) < 30

    run(scenario())


def test_an_optional_kind_comes_and_goes(caplog):
    async def scenario():
        store = Store()
        store.refused["PodMonitor"] = 404
        async with reading(store, "PodMonitor", optional=True) as one:
            assert (one.reflector.listed, one.reflector.status, one.reflector.problem) == (False, 404, "")
            store.refused.clear()
            store.write(manifest("a", kind="PodMonitor"))
            await asyncio.sleep(ABSENT_SECONDS)
            assert one.reflector.listed
            assert one.equals_the_store()
            store.refused["PodMonitor"] = 404
            store.interrupt()
            await asyncio.sleep(LONGEST_BACK_OFF)
            assert (one.known, one.reflector.listed, one.reflector.status) == ({}, False, 404)
            lists = len(store.listed)
            await asyncio.sleep(10 * ABSENT_SECONDS)
            assert len(store.listed) - lists <= 20

    caplog.set_level("INFO")
    run(scenario())
    assert "is not installed" not in caplog.text
    assert "no longer has this API" in caplog.text


def test_a_kind_that_must_exist_is_waited_for_and_named(caplog):
    async def scenario():
        store = Store()
        store.refused["InferenceService"] = 404
        async with reading(store, "InferenceService") as one:
            assert not one.reflector.listed
            store.refused.clear()
            await asyncio.sleep(LONGEST_BACK_OFF)
            assert one.reflector.listed

    run(scenario())
    assert "waiting for the API server: inflight.dev/v1alpha1 is not installed" in caplog.text


def test_a_reader_whose_history_went_back_ends_its_reflector():
    async def scenario():
        store = Store()

        def take(changes):
            raise HistoryError("7 after 9")

        with pytest.raises(HistoryError, match="7 after 9"):
            await Reflector(store, Selection("Pod"), take).run()

    run(scenario())


def test_a_fault_of_the_reader_is_logged_and_everything_listed_again(caplog, monkeypatch):
    monkeypatch.setattr(reflector_module, "FIRST_BACK_OFF", 0.1)

    async def scenario():
        store, faults = Store(), [RuntimeError("a fault of ours")]

        class Faulty(Reading):
            def take(self, changes):
                if faults:
                    raise faults.pop()
                super().take(changes)

        one = Faulty(store)
        store.write(manifest("a"))
        task = asyncio.create_task(one.reflector.run())
        await asyncio.sleep(1)
        assert one.equals_the_store()
        task.cancel()

    run(scenario())
    assert "a fault of ours" in caplog.text
