"""Watches that kopf is asked for, and the handling of their events."""

import asyncio

import kopf
from aiohttp import web

from inflight_base.kube.client import PAGE
from inflight_base.manifest.names import API_VERSION, GROUP, KIND, PLURAL, VERSION
from inflight_operator.observe.cache import ClusterCache
from inflight_operator.watch.handlers import build_registry, configure_kopf
from tests.operator.fakes import KEY
from tests.operator.observe.cluster_history import manifest


async def nothing(*_):
    """Stands in for parts that a test does not use."""


def handlers(cache, looked):
    registry = build_registry(cache, looked.append, nothing, nothing)
    return {handler.id: handler.fn for handler in registry._watching.get_all_handlers()}


async def test_an_event_of_a_service_asks_for_a_round_once_for_each_version():
    cache, looked = ClusterCache(), []
    registered = handlers(cache, looked)
    assert set(registered) == {KIND}
    await registered[KIND](type=None, body=manifest(KIND, "chat", "1", 1))
    await registered[KIND](type="MODIFIED", body=manifest(KIND, "chat", "1", 1))
    assert looked == [KEY]
    await registered[KIND](type="DELETED", body=manifest(KIND, "chat", "1", 2))
    assert cache.service(KEY) is not None  # the watch of the cache reports deletions
    assert looked == [KEY]


def test_kopf_only_watches_and_lists_in_pages():
    settings = kopf.OperatorSettings()
    configure_kopf(settings)
    assert not settings.posting.enabled
    assert settings.watching.chunk_size == PAGE


def test_kopf_takes_no_differences_of_objects_and_no_handler_would_get_one():
    settings = kopf.OperatorSettings()
    configure_kopf(settings)
    storage, body, patch = (
        settings.persistence.diffbase_storage,
        kopf.Body(manifest(KIND, "chat", "1", 1)),
        kopf.Patch(),
    )
    assert (storage.fetch(body=body), storage.build(body=body)) == (None, {})
    storage.store(body=body, patch=patch, essence=storage.build(body=body))
    assert not patch
    registry = build_registry(ClusterCache(), print, nothing, nothing)
    assert not [*registry._changing.get_all_handlers(), *registry._spawning.get_all_handlers()]


async def test_kopf_watches_services_and_nothing_else():
    asked = set()

    async def answer(request):
        if request.path in ("/api", "/apis"):
            version = {"groupVersion": API_VERSION, "version": VERSION}
            groups = [{"name": GROUP, "preferredVersion": version, "versions": [version]}]
            return web.json_response({"versions": ["v1"], "groups": groups})
        if request.path in ("/api/v1", f"/apis/{API_VERSION}"):
            kind, plural = (KIND, PLURAL) if GROUP in request.path else ("Namespace", "namespaces")
            one = {"name": plural, "kind": kind, "singularName": kind.lower(), "namespaced": True}
            return web.json_response({"resources": [{**one, "verbs": ["list", "watch"]}]})
        asked.add(request.path)
        if "watch" in request.query:
            response = web.StreamResponse()
            await response.prepare(request)
            await asyncio.Event().wait()
        items = [manifest(KIND, "chat", "1", 1)]
        return web.json_response({"metadata": {"resourceVersion": "10"}, "items": items})

    runner = web.ServerRunner(web.Server(answer), shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()

    async def connect():
        return kopf.ConnectionInfo(server=f"http://127.0.0.1:{runner.addresses[0][1]}")

    looked = asyncio.Queue()
    registry = build_registry(ClusterCache(), looked.put_nowait, connect, nothing)
    watching = asyncio.create_task(kopf.operator(registry=registry, standalone=True, clusterwide=True))
    try:
        assert await asyncio.wait_for(looked.get(), 30) == KEY
        assert asked == {f"/apis/{API_VERSION}/{PLURAL}"}
    finally:
        watching.cancel()
        await asyncio.wait({watching})
        await runner.cleanup()
