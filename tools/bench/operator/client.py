"""Calls to the API server as its administrator: few verbs, JSON bodies, watches that go on after a cut."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Self

import aiohttp

from inflight_base.manifest import Manifest
from tools.localcluster import probe

PAGE = 500
CONNECTIONS = 32


class ApiError(Exception):
    """The API server refused a call; the message has its reason."""

    def __init__(self, action: str, status: int, message: str) -> None:
        super().__init__(f"{action}: {message} (HTTP {status})")
        self.status = status


class Client:
    """One session with the API server.

    Args:
        server: `https://HOST:PORT`.
        pki: folder with `ca.crt`, `admin.crt` and `admin.key`.
    """

    def __init__(self, server: str, pki: Path) -> None:
        self._server = server
        self._tls = probe.client_context(pki, "admin")

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=CONNECTIONS)
        timeout = aiohttp.ClientTimeout(total=60)
        # A pod takes 10 kB, a line of a watch must hold one: aiohttp's limit is 64 kB for both directions.
        self._http = aiohttp.ClientSession(self._server, connector=connector, timeout=timeout, read_bufsize=2**20)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.close()

    async def call(
        self, method: str, path: str, body: Manifest | None = None, query: Mapping[str, str] | None = None
    ) -> Manifest:
        """The answer's JSON object.

        Raises:
            ApiError: any status but 2xx.
        """
        content_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
        async with self._http.request(
            method,
            path,
            params=query,
            data=None if body is None else json.dumps(body),
            headers={"Content-Type": content_type},
        ) as response:
            text = await response.text()
            if not response.ok:
                raise ApiError(f"{method} {path}", response.status, text[:300])
            answer: Manifest = json.loads(text)
            return answer

    async def list(self, path: str, **query: str) -> tuple[list[Manifest], str]:
        """All objects at `path`, page by page, and the resource version from which to watch."""
        items: list[Manifest] = []
        following = ""
        while True:
            page = {"continue": following} if following else {}
            answer = await self.call("GET", path, query={"limit": str(PAGE), **query, **page})
            items += answer["items"]
            following = answer["metadata"].get("continue", "")
            if not following:
                return items, answer["metadata"]["resourceVersion"]

    async def follow(self, path: str, **query: str) -> AsyncIterator[tuple[str, Manifest]]:
        """Lists, then watches, until the caller leaves: `("ADDED" | "MODIFIED" | "DELETED", object)`."""
        while True:
            items, version = await self.list(path, **query)
            for item in items:
                yield "ADDED", item
            try:
                async for kind, item in self._watch(path, version, query):
                    yield kind, item
            except (aiohttp.ClientError, TimeoutError):
                await asyncio.sleep(0.5)

    async def _watch(self, path: str, version: str, query: Mapping[str, str]) -> AsyncIterator[tuple[str, Manifest]]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        parameters = {"watch": "true", "resourceVersion": version, **query}
        async with self._http.get(path, params=parameters, timeout=timeout) as response:
            if not response.ok:
                return
            async for line in response.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                yield event["type"], event["object"]

    async def create_all(self, manifests: Iterable[tuple[str, Manifest]], rate: float) -> None:
        """POSTs `(path, manifest)`s, at most `rate` a second and `CONNECTIONS` at once.

        Raises:
            ExceptionGroup: of ApiErrors.
        """

        start = monotonic()
        async with asyncio.TaskGroup() as tasks:
            for number, (path, manifest) in enumerate(manifests):
                await asyncio.sleep(max(0.0, start + number / rate - monotonic()))
                tasks.create_task(self.call("POST", path, manifest))
