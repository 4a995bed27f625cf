"""What kopf is asked to watch, and what its events become."""

import asyncio
import json

import kopf
from aiohttp import web

from inflight_base.kube.client import PAGE
from inflight_base.kube.kinds import RESOURCES
from inflight_operator.observe.cache import ClusterCache
from inflight_operator.watch.handlers import WATCHED_KINDS, build_registry, configure_kopf
from tests.operator.fakes import KEY
from tests.operator.observe.cluster_history import manifest


async def nothing(*_):
    """For parts that a test does not look at."""


def handlers(cache, looked, relisted):
    async def look_at(key):
        looked.append(key)

    registry = build_registry(cache, look_at, relisted.append, nothing, nothing)
    return {handler.id: handler.fn for handler in registry._watching.get_all_handlers()}


async def test_events_fill_the_cache_and_ask_for_a_look():
    cache, looked = ClusterCache(), []
    told = handlers(cache, looked, [])
    assert set(told) == set(WATCHED_KINDS)
    await told["Service"](type="ADDED", body=manifest("Service", "chat", "1", 1), memo=kopf.Memo())
    await told["Service"](type="MODIFIED", body=manifest("Service", "chat", "1", 1), memo=kopf.Memo())
    assert looked == [KEY]
    await told["Service"](type="DELETED", body=manifest("Service", "chat", "1", 2), memo=kopf.Memo())
    assert cache.children(KEY) == []
    assert looked == [KEY, KEY]


async def test_an_object_that_is_listed_again_asks_for_a_list_of_its_kind():
    relisted, memo = [], kopf.Memo()
    told = handlers(ClusterCache(), [], relisted)
    await told["Pod"](type=None, body=manifest("Pod", "chat-1", "1", 1), memo=memo)
    await told["Pod"](type="MODIFIED", body=manifest("Pod", "chat-1", "1", 2), memo=memo)
    assert relisted == []
    await told["Pod"](type=None, body=manifest("Pod", "chat-1", "1", 2), memo=memo)
    assert relisted == ["Pod"]


def test_kopf_only_watches_and_lists_in_pages_by_label():
    settings = kopf.OperatorSettings()
    configure_kopf(settings)
    assert not settings.posting.enabled
    assert settings.watching.chunk_size == PAGE
    assert len(settings.watching.label_selectors) == len(WATCHED_KINDS) - 1
    assert settings.persistence.diffbase_storage.build(body=manifest("Pod", "chat-1", "1", 1)) == {}


class WatchServer:
    """A stand-in for the API server that lists `pods`. The first watch of pods ends with 410 Gone, the others wait."""

    def __init__(self):
        self.pods = ["chat-1", "chat-2"]
        self.may_expire = asyncio.Event()
        self.lists = 0

    async def answer(self, request):
        *_, last = request.path.split("/")
        if request.path in ("/api", "/apis"):
            groups = [
                {"name": api.split("/")[0], "preferredVersion": version, "versions": [version]}
                for api in {api for api, _ in RESOURCES.values() if "/" in api}
                for version in [{"groupVersion": api, "version": api.split("/")[1]}]
            ]
            return web.json_response({"versions": ["v1"], "groups": groups})
        if request.path in ("/api/v1", *(f"/apis/{api}" for api, _ in RESOURCES.values())):
            api = request.path.removeprefix("/apis/").removeprefix("/api/")
            named = [(kind, plural) for kind, (of, plural) in RESOURCES.items() if of == api]
            return web.json_response({"resources": [_resource(*one) for one in (*named, ("Namespace", "namespaces"))]})
        if "watch" in request.query:
            response = web.StreamResponse()
            await response.prepare(request)
            await (self.may_expire.wait() if last == "pods" and self.lists == 1 else asyncio.Event().wait())
            await response.write(json.dumps({"type": "ERROR", "object": {"code": 410}}).encode() + b"\n")
            return response
        items = []
        if last == "pods":
            self.lists += 1
            items = [manifest("Pod", name, name, number) for number, name in enumerate(self.pods, 1)]
        return web.json_response({"metadata": {"resourceVersion": "10"}, "items": items})


def _resource(kind, plural):
    return {"name": plural, "kind": kind, "singularName": kind.lower(), "namespaced": True, "verbs": ["list", "watch"]}


async def test_after_410_kopf_lists_anew_and_what_was_deleted_meanwhile_is_left_to_our_list():
    server = WatchServer()
    runner = web.ServerRunner(web.Server(server.answer), shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    cache, looked, relisted = ClusterCache(), asyncio.Queue(), asyncio.Queue()

    async def connect():
        return kopf.ConnectionInfo(server=f"http://127.0.0.1:{runner.addresses[0][1]}")

    registry = build_registry(cache, looked.put, relisted.put_nowait, connect, nothing)
    watching = asyncio.create_task(kopf.operator(registry=registry, standalone=True, clusterwide=True))
    try:
        async with asyncio.timeout(30):
            for _ in server.pods:
                await looked.get()
            assert relisted.empty()
            server.pods = ["chat-2"]
            server.may_expire.set()
            assert await relisted.get() == "Pod"
        assert len(cache.pods(KEY)) == 2  # kopf did not tell
    finally:
        watching.cancel()
        await asyncio.wait({watching})
        await runner.cleanup()
