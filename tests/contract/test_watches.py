"""The operator's watches over a real API server: what was deleted while they were cut, versions that are too old, and
an etcd that is restored from a backup."""

import asyncio
import shutil
from contextlib import asynccontextmanager

import pytest
from kubernetes.aio import client

from inflight_base.kube import client as client_module
from inflight_base.kube import reflector as reflector_module
from inflight_base.kube.changes import HistoryError
from inflight_base.kube.connect import load_configuration
from inflight_base.manifest.keys import ServiceKey
from inflight_operator.apply.kube import OperatorApi
from inflight_operator.observe.cache import ClusterCache
from inflight_operator.watch.watches import Watches
from tests.contract.cable import cable_to
from tests.contract.manifests import service_manifest
from tests.gateway.waiting import until
from tools.localcluster.node.plane import apiserver_only

pytestmark = pytest.mark.contract

SPEC = {"model": {"source": "builtin://smollm2"}, "accelerator": {"count": 0}}


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(reflector_module, "LONGEST_BACK_OFF", 0.5)
    monkeypatch.setattr(client_module, "WATCH_SECONDS", 6)


def child(namespace, name, **data):
    labels = {"inflight.dev/service": "chat"}
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


class Watching:
    """Watches of a namespace, and their cache."""

    def __init__(self, api, namespace):
        self.api, self.cache, self.looked, self.key = api, ClusterCache(), [], ServiceKey(namespace, "chat")
        self.lists, pages = 0, api.pages

        def counted(selection):
            self.lists += selection.kind == "ConfigMap"
            return pages(selection)

        api.pages = counted
        self.watches = Watches(api, self.cache, self.looked.append, [namespace])
        self.task = asyncio.create_task(self.watches.run())

    @property
    def children(self):
        return {one["metadata"]["name"]: one.get("data", {}) for one in self.cache.children(self.key)}

    @property
    def problems(self):
        return [one.problem for one in self.watches._reflectors if one.problem]


@asynccontextmanager
async def watching(kubeconfig, namespace, tmp_path):
    path = tmp_path / "operator.kubeconfig"
    cable = await cable_to(kubeconfig, path)
    async with client.ApiClient(await load_configuration(str(path))) as connected:
        one = Watching(OperatorApi(connected), namespace)
        yield one, cable
        one.task.cancel()
        await asyncio.gather(one.task, return_exceptions=True)
    await cable.cut()


async def test_what_changes_while_the_watches_are_cut_is_known_after(kubectl, namespace, api, tmp_path):
    await api.create(service_manifest(namespace, SPEC))
    for name in ("kept", "changed", "deleted"):
        await api.create(child(namespace, name))
    async with watching(kubectl.kubeconfig, namespace, tmp_path) as (one, cable):
        await one.watches.listed()
        assert one.watches.available == frozenset()  # optional kinds that the cluster does not have
        assert set(one.children) == {"kept", "changed", "deleted"}
        assert one.cache.services() == [one.key]
        await api.delete("ConfigMap", namespace, "kept")
        await until(lambda: set(one.children) == {"changed", "deleted"})

        await cable.cut()
        await until(lambda: len(one.problems) >= 8)
        await api.delete("ConfigMap", namespace, "deleted")
        await api.delete("InferenceService", namespace, "chat")
        await api.apply(child(namespace, "changed", number="1"))
        one.looked.clear()
        assert one.children == {"changed": {}, "deleted": {}}
        await cable.mend()
        await until(lambda: one.children == {"changed": {"number": "1"}} and not one.problems)
        await until(lambda: one.cache.services() == [])
        assert one.key in one.looked


async def test_an_api_server_that_restarts_forgets_its_events_and_a_restored_etcd_ends_the_watches(
    tmp_path_factory, tmp_path, monkeypatch
):
    folder = tmp_path_factory.mktemp("restored")
    path = tmp_path / "operator.kubeconfig"
    with apiserver_only(folder) as kubeconfig:
        cable = await cable_to(kubeconfig, path)
        connected = client.ApiClient(await load_configuration(str(path)))
        async with client.ApiClient(await load_configuration(str(kubeconfig))) as direct:
            api = OperatorApi(direct)
            one = Watching(OperatorApi(connected), "default")
            await one.watches.listed(["ConfigMap"])
            for name in ("kept", "deleted"):
                await api.create(child("default", name))
            await until(lambda: set(one.children) == {"kept", "deleted"})
            await cable.cut()
            await api.delete("ConfigMap", "default", "deleted")
            await api.create(child("default", "new"))
    shutil.copytree(folder / "etcd", folder / "backup")
    with apiserver_only(folder) as kubeconfig:
        lists = one.lists
        cable.lead_to(kubeconfig)
        await cable.mend()
        await until(lambda: set(one.children) == {"kept", "new"}, 30)
        assert one.lists > lists, "410 Gone, and a new list"
        for number in range(200):  # more than a start of the API server writes
            await one.api.create(child("default", f"child-{number}"))
        await until(lambda: len(one.children) == 202, 30)
    shutil.rmtree(folder / "etcd")
    (folder / "backup").rename(folder / "etcd")
    with apiserver_only(folder) as kubeconfig:
        assert len(one.children) == 202, "while the API server is away, all that is known stays"
        cable.lead_to(kubeconfig)
        monkeypatch.setattr(reflector_module, "SILENT_SECONDS", 9.0)
        with pytest.raises(ExceptionGroup) as ended:
            await asyncio.wait_for(one.task, 120)
        # Several lists may say so in the same turn.
        assert all(isinstance(each, HistoryError) for each in ended.value.exceptions)
        assert "older than what came before" in str(ended.value.exceptions[0])
    await connected.close()
    await cable.cut()
