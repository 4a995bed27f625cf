"""A small fake of the Kubernetes API: lists and watches of the objects that a test puts in."""

import asyncio
import json
from contextlib import asynccontextmanager

from aiohttp import web
from kubernetes.aio import client

from inflight_base.kube.client import KubeApi


class FakeApi:
    """A fake API server.

    Attributes:
        requests: (path, query) of each call, in order.
        refuse: HTTP status of all calls; None answers them.
        ends_watches: True to end watches at once, after the events that there are.
    """

    def __init__(self):
        self.objects, self.events, self.version, self.oldest = {}, [], 1, 0
        self.requests, self.refuse, self.changed = [], None, asyncio.Condition()
        self.port, self.runner, self.page, self.ends_watches = 0, None, None, False

    async def put(self, path, manifest):
        key = (path, manifest["metadata"]["namespace"], manifest["metadata"]["name"])
        await self._event("MODIFIED" if key in self.objects else "ADDED", key, manifest)
        self.objects[key] = manifest

    async def delete(self, path, namespace, name):
        await self._event("DELETED", (path, namespace, name), self.objects.pop((path, namespace, name)))

    async def bookmark(self):
        self.version += 1
        async with self.changed:
            self.events.append((self.version, "BOOKMARK", None, {"metadata": {"resourceVersion": str(self.version)}}))
            self.changed.notify_all()

    def forget_events(self):
        """Makes all watches from earlier versions fail: 410 Gone."""
        self.events.clear()
        self.version += 1
        self.oldest = self.version

    async def _event(self, kind, key, manifest):
        self.version += 1
        manifest["metadata"]["resourceVersion"] = str(self.version)
        async with self.changed:
            self.events.append((self.version, kind, key, json.loads(json.dumps(manifest))))
            self.changed.notify_all()

    async def start(self):
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self.runner.addresses[0][1]

    async def stop(self):
        await self.runner.cleanup()

    async def _answer(self, request):
        query = dict(request.query)
        self.requests.append((request.path, query))
        if self.refuse:
            return web.json_response({"kind": "Status", "message": "not now", "code": self.refuse}, status=self.refuse)
        if query.get("watch") == "1":
            return await self._watch(request, query)
        items = [
            value for key, value in sorted(self.objects.items()) if self._selected(key, value, request.path, query)
        ]
        start, more = int(query.get("continue", "0")), {}
        if self.page and start + self.page < len(items):
            more = {"continue": str(start + self.page)}
        items = items[start : start + (self.page or len(items))]
        return web.json_response({"metadata": {"resourceVersion": str(self.version), **more}, "items": items})

    async def _watch(self, request, query):
        answer = web.StreamResponse()
        await answer.prepare(request)
        last = int(query["resourceVersion"])
        if last < self.oldest:
            status = {"kind": "Status", "code": 410, "message": "too old resource version"}
            await answer.write(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
            return answer
        while True:
            for version, kind, key, manifest in tuple(self.events):
                bookmark = kind == "BOOKMARK"
                if version > last and (bookmark or self._selected(key, manifest, request.path, query)):
                    last = version
                    await answer.write(json.dumps({"type": kind, "object": manifest}).encode() + b"\n")
            if self.ends_watches:
                return answer
            async with self.changed:
                await self.changed.wait()

    @staticmethod
    def _selected(key, manifest, path, query):
        collection, namespace, name = key
        label = query.get("labelSelector", "").partition("=")
        labels = manifest["metadata"].get("labels", {})
        return (
            path in (collection, _namespaced(collection, namespace))
            and query.get("fieldSelector", f"metadata.name={name}") == f"metadata.name={name}"
            and (not label[0] or (label[0] in labels and labels[label[0]] in (label[2] or labels[label[0]],)))
        )


def _namespaced(collection, namespace):
    base, _, plural = collection.rpartition("/")
    return f"{base}/namespaces/{namespace}/{plural}"


@asynccontextmanager
async def fake_api():
    fake = FakeApi()
    await fake.start()
    configuration = client.Configuration(host=f"http://127.0.0.1:{fake.port}", connection_pool_maxsize=0)
    async with client.ApiClient(configuration) as api_client:
        fake.api = KubeApi(api_client)
        yield fake
    await fake.stop()
