"""Lists that keep the cache right, and kinds that come and go while the operator runs. The API server is a stand-in."""

import asyncio

import pytest

from inflight_base.kube.client import Page
from inflight_base.kube.errors import KubeApiError
from inflight_operator.observe.cache import ClusterCache
from inflight_operator.watch import available as available_module
from inflight_operator.watch.available import AvailableApis
from inflight_operator.watch.handlers import WATCHED_KINDS
from inflight_operator.watch.listing import PAGE_SECONDS, RELIST_SECONDS, SETTLE_SECONDS, HistoryError, Lister
from tests.operator.fakes import KEY
from tests.operator.observe.cluster_history import manifest
from tests.operator.virtual_time import run

POD_MONITOR = "monitoring.coreos.com/v1/PodMonitor"


class Cluster:
    """Answers lists and lookups from what is set here, and remembers what was listed."""

    def __init__(self):
        self.kind_missing = asyncio.Event()
        self.apis = frozenset()
        self.objects = {}
        self.version = 10
        self.listed = []
        self.failing = 0
        self.forbidden = set()

    async def available_apis(self):
        return self.apis

    async def pages(self, selection):
        kind, namespace = selection.kind, selection.namespace
        self.listed.append((kind, namespace))
        if self.failing:
            self.failing -= 1
            raise KubeApiError("GET", 500, "away")
        if (kind, namespace) in self.forbidden:
            raise KubeApiError("GET", 403, f"{kind} is forbidden")
        if kind == "PodMonitor" and POD_MONITOR not in self.apis:
            raise KubeApiError("GET", 404, "the server could not find the requested resource")
        items = [one for one in self.objects.get(kind, []) if namespace in (None, one["metadata"]["namespace"])]
        for start in range(0, max(1, len(items)), 2):
            yield Page(start == 0, start + 2 >= len(items), str(self.version), items[start : start + 2])


class Running:
    """A lister and the lookup beside it, with the cluster they talk to."""

    def __init__(self, namespaces=()):
        self.cluster, self.cache = Cluster(), ClusterCache()
        self.apis = AvailableApis(self.cluster)
        self.lister = Lister(self.cluster, self.cache, self.apis, namespaces)

    async def __aenter__(self):
        await self.apis.refresh()
        await self.lister.list_all()
        self.tasks = [asyncio.create_task(one) for one in (self.lister.run(), self.apis.run(self.lister.ask))]
        return self

    async def __aexit__(self, *_):
        for task in self.tasks:
            task.cancel()


def test_secrets_are_not_read_and_optional_kinds_are_not_watched():
    assert {"InferenceService", "Pod", "EndpointSlice", "Deployment", "Service"} <= set(WATCHED_KINDS)
    assert not {"Secret", "PodMonitor"} & set(WATCHED_KINDS)


def test_each_namespace_is_listed_and_keeps_its_own_objects():
    async def scenario():
        running = Running(("team", "other"))
        running.cluster.objects["Service"] = [
            manifest("Service", "chat", "1", 1),
            manifest("Service", "chat", "2", 2, namespace="other"),
        ]
        async with running:
            assert ("Pod", "team") in running.cluster.listed
            assert ("Pod", "other") in running.cluster.listed
            assert len(running.cache.children(KEY)) == 1
            assert running.cache.child(("other", "chat"), "Service", "chat") is not None

    run(scenario())


def test_a_list_that_is_asked_for_tells_what_was_deleted_and_several_requests_make_one_list():
    async def scenario():
        running = Running()
        running.cluster.objects["Service"] = [manifest("Service", str(name), str(name), name) for name in range(5)]
        async with running:
            assert len(running.cache.children(KEY)) == 5
            running.cluster.objects["Service"] = running.cluster.objects["Service"][:3]
            running.cluster.listed.clear()
            for _ in range(10):
                running.lister.ask("Service")
            await asyncio.sleep(SETTLE_SECONDS + 1 + PAGE_SECONDS)
            assert len(running.cache.children(KEY)) == 3
            assert running.cluster.listed == [("Service", None)]

    run(scenario())


def test_everything_is_listed_now_and_then_also_while_lists_are_asked_for():
    async def scenario():
        async with Running() as running:
            running.cluster.listed.clear()
            for _ in range(int(RELIST_SECONDS)):
                running.lister.ask("Pod")
                await asyncio.sleep(1)
            await asyncio.sleep(1)
            assert ("Deployment", None) in running.cluster.listed

    run(scenario())


def test_a_list_that_fails_is_tried_again():
    async def scenario():
        async with Running() as running:
            running.cluster.listed.clear()
            running.cluster.failing = 2
            running.lister.ask("Pod")
            await asyncio.sleep(4 * SETTLE_SECONDS)
            assert running.cluster.listed == [("Pod", None)] * 3

    run(scenario())


def test_an_api_server_whose_versions_went_back_ends_the_lister():
    async def scenario():
        async with Running() as running:
            running.cluster.version = 3
            running.lister.ask("Pod")
            with pytest.raises(HistoryError, match="older than the one before"):
                await running.tasks[0]

    run(scenario())


def test_a_kind_that_is_installed_while_the_operator_runs_is_listed_and_forgotten_when_it_goes():
    async def scenario():
        async with Running() as running:
            cluster = running.cluster
            assert running.apis.current == frozenset()
            cluster.apis = frozenset({POD_MONITOR})
            cluster.objects["PodMonitor"] = [manifest("PodMonitor", "chat", "1", 4)]
            await asyncio.sleep(available_module.LOOKUP_SECONDS + SETTLE_SECONDS + 1)
            assert running.apis.current == {POD_MONITOR}
            assert len(running.cache.children(KEY)) == 1
            cluster.apis = frozenset()
            cluster.kind_missing.set()  # as a write that was answered with 404 does
            await asyncio.sleep(available_module.SHORTEST_SECONDS + 1)
            assert running.apis.current == frozenset()
            await asyncio.sleep(SETTLE_SECONDS)
            assert running.cache.children(KEY) == []

    run(scenario())


async def test_an_optional_kind_that_may_not_be_listed_in_a_namespace_does_not_block_the_start(caplog):
    running = Running(("team", "other"))
    running.cluster.apis = frozenset({POD_MONITOR})
    running.cluster.objects["PodMonitor"] = [manifest("PodMonitor", "chat", "1", 4, namespace="other")]
    running.cluster.forbidden = {("PodMonitor", "team")}
    await running.apis.refresh()
    await running.lister.list_all()
    assert "PodMonitor is forbidden" in caplog.text
    assert running.cache.child(("other", "chat"), "PodMonitor", "chat") is not None


async def test_a_kind_that_must_exist_and_may_not_be_listed_is_an_error():
    running = Running()
    running.cluster.forbidden = {("Service", None)}
    with pytest.raises(KubeApiError, match="Service is forbidden"):
        await running.lister.list_all()


async def test_a_kind_that_the_operator_may_not_use_is_not_listed_where_the_cluster_has_it():
    cluster = Cluster()
    cluster.apis = frozenset({POD_MONITOR, "inference.networking.k8s.io/v1/InferencePool"})
    apis = AvailableApis(cluster, ("PodMonitor",))
    assert await apis.refresh() == {"PodMonitor"}
    assert apis.kinds() == ("PodMonitor",)
