"""A stand-in for the API server in memory: lists in pages and ordered watches of objects, with interruptions."""

import asyncio

from inflight_base.kube.changes import Event
from inflight_base.kube.client import Page
from inflight_base.kube.errors import KubeApiError

SECONDS = 0.01
"""Seconds between two pages of a list: other changes come between them."""


class Store:
    """A fake API server with a store of objects.

    Attributes:
        refused: HTTP status of all calls for a kind, 0 for no response.
        listed: kind and namespace of each list.
    """

    def __init__(self, page=2):
        self.page, self.version, self.oldest, self.cuts = page, 10, 0, 0
        self.objects, self.events, self.refused, self.listed = {}, [], {}, []
        self._changed = asyncio.Event()

    def write(self, manifest):
        """Creates or changes an object. Returns it as stored."""
        metadata, self.version = manifest["metadata"], self.version + 1
        key = (manifest["kind"], metadata["namespace"], metadata["name"])
        uid = self.objects[key]["metadata"]["uid"] if key in self.objects else f"{metadata['name']}-{self.version}"
        stored = {**manifest, "metadata": {**metadata, "uid": uid, "resourceVersion": str(self.version)}}
        self._tell("MODIFIED" if key in self.objects else "ADDED", stored)
        self.objects[key] = stored
        return stored

    def delete(self, kind, namespace, name):
        gone = self.objects.pop((kind, namespace, name), None)
        if gone is not None:
            self.version += 1
            self._tell("DELETED", {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self.version)}})

    def interrupt(self):
        """Cuts all watches."""
        self.cuts += 1
        self._wake()

    def expire(self):
        """Makes all watches from earlier versions fail: 410 Gone."""
        self.version += 1
        self.oldest = self.version
        self.events.clear()
        self.interrupt()

    async def pages(self, selection):
        self.listed.append((selection.kind, selection.namespace))
        self._answer(selection)
        items, version = self._selected(selection, self.objects.values()), str(self.version)
        for start in range(0, max(1, len(items)), self.page):
            await asyncio.sleep(SECONDS)
            self._answer(selection)
            yield Page(start == 0, start + self.page >= len(items), version, items[start : start + self.page])

    async def watch(self, selection, version):
        self._answer(selection)
        cuts, last = self.cuts, int(version)
        yield Event("OPEN", {}, version)
        if last < self.oldest:
            raise KubeApiError("GET", 410, "too old resource version")
        while True:
            if cuts != self.cuts:
                raise KubeApiError("GET", 0, "connection reset")
            for type, body in tuple(self.events):
                at = int(body["metadata"]["resourceVersion"])
                if at > last and self._selected(selection, [body]):
                    last = at
                    yield Event(type, body, str(at))
            await self._changed.wait()

    def _answer(self, selection):
        if selection.kind in self.refused:
            raise KubeApiError("GET", self.refused[selection.kind], "refused")

    @staticmethod
    def _selected(selection, bodies):
        return [
            body
            for body in bodies
            if body["kind"] == selection.kind
            and selection.namespace in (None, body["metadata"]["namespace"])
            and (not selection.labels or selection.labels in body["metadata"].get("labels", {}))
        ]

    def _tell(self, type, body):
        self.events.append((type, body))
        self._wake()

    def _wake(self):
        self._changed.set()
        self._changed = asyncio.Event()
