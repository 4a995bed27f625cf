"""Calls to the API server, with readable errors.

Lists and watches: https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlencode

import aiohttp

from inflight_base.kube.changes import Event, event_of
from inflight_base.kube.errors import KubeApiError, json_object, refusal
from inflight_base.kube.kinds import RESOURCES, Selection, object_path
from inflight_base.manifest import Manifest

PAGE = 200
"""Maximum objects in one page of a list: reading a page blocks the event loop for some tens of milliseconds."""

CONNECT_SECONDS = 5.0
CALL_SECONDS = 30.0
"""Longest time for a call; a list has a call for each page."""

WATCH_SECONDS = 60
"""Seconds after which the API server ends a watch, which then resumes. Short, so that a silently dead connection is
detected."""

MAX_EVENT = 2**22
"""Longest event, in bytes. etcd accepts objects of 1.5 MiB."""


class Page(NamedTuple):
    """A part of a list.

    Attributes:
        first: the list begins or restarts here; earlier pages are discarded.
        last: the list is complete.
        version: resourceVersion of the whole list, the same in all its pages.
    """

    first: bool
    last: bool
    version: str
    items: list[Manifest]


class KubeApi:
    """The API server. All methods raise KubeApiError when a call fails."""

    def __init__(
        self,
        api_client: Any,
        *,
        field_manager: str = "",
        may_write: Callable[[], bool] = lambda: True,
        timeout_seconds: float = CALL_SECONDS,
    ) -> None:
        """
        Args:
            api_client: a `kubernetes.aio.client.ApiClient`, which the caller closes.
            field_manager: owner of the fields that `apply` and `patch` write.
            may_write: called before each write; if false, the write fails without a call.
            timeout_seconds: how long one call may take.
        """
        self._client = api_client
        self._field_manager = field_manager
        self._may_write = may_write
        self._limits = aiohttp.ClientTimeout(total=timeout_seconds)

    async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """The object, or None when there is none."""
        try:
            return await self._call("GET", object_path(kind, namespace, name))
        except KubeApiError as error:
            if error.status == 404:
                return None
            raise

    async def list(self, selection: Selection) -> list[Manifest]:
        """All selected objects."""
        items: list[Manifest] = []
        async for page in self.pages(selection):
            items = page.items if page.first else items + page.items
        return items

    async def pages(self, selection: Selection) -> AsyncGenerator[Page, None]:
        """Yields all selected objects, `PAGE` at a time. A list that expires (410) is restarted.

        A list leaves `apiVersion` and `kind` out of its items; they are put back here.
        """
        kind = {"apiVersion": RESOURCES[selection.kind][0], "kind": selection.kind}
        action, following = f"GET {selection.query()}", ""
        while True:
            first = not following
            try:
                answer = await self._call(
                    "GET", selection.query(limit=str(PAGE), **{"continue": following}), action=action
                )
            except KubeApiError as error:
                if error.status != 410 or first:
                    raise
                following = ""
                continue
            with _readable_errors(action):
                items = [{**kind, **item} for item in answer["items"] or ()]
                version, following = answer["metadata"]["resourceVersion"], answer["metadata"].get("continue", "")
            yield Page(first, not following, version, items)
            if not following:
                return

    async def watch(self, selection: Selection, version: str) -> AsyncGenerator[Event, None]:
        """Events since `version`, until the API server ends the watch, which it does after `WATCH_SECONDS`.

        Raises:
            KubeApiError: the call failed. 410: `version` is too old, list again.
        """
        path = selection.query(
            watch="1", allowWatchBookmarks="true", timeoutSeconds=str(WATCH_SECONDS), resourceVersion=version
        )
        action = f"GET {selection.query()}"
        limits = aiohttp.ClientTimeout(connect=CONNECT_SECONDS, total=WATCH_SECONDS + 15.0)
        answer = await self._open(action, "GET", path, limits)
        with _readable_errors(action):
            async with answer:
                yield Event("OPEN", {}, version)
                rest = b""
                async for chunk in answer.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        yield event_of(action, line)
                    if len(rest) > MAX_EVENT:
                        raise KubeApiError(action, 0, f"an event of more than {MAX_EVENT} bytes")

    async def apply(self, manifest: Manifest, *, dry_run: bool = False, force: bool = True) -> Manifest:
        """Server-side apply. Returns the live object.

        Args:
            force: take over fields that others own and that `manifest` names, rather than fail with 409.
        """
        metadata = manifest["metadata"]
        query = {
            "fieldManager": self._field_manager,
            "force": str(force).lower(),
            **({"dryRun": "All"} if dry_run else {}),
        }
        path = f"{object_path(manifest['kind'], metadata['namespace'], metadata['name'])}?{urlencode(query)}"
        return await self._call("PATCH", path, manifest, "application/apply-patch+yaml")

    async def create(self, manifest: Manifest) -> Manifest:
        """Creates an object and returns it as stored; an error with status 409 if the name exists."""
        return await self._call("POST", object_path(manifest["kind"], manifest["metadata"].get("namespace")), manifest)

    async def replace(self, manifest: Manifest) -> Manifest:
        """Puts `manifest` in place of the object it was made from; an error with status 409 when that has changed since
        (`metadata.resourceVersion`). Returns it as stored."""
        metadata = manifest["metadata"]
        return await self._call("PUT", object_path(manifest["kind"], metadata["namespace"], metadata["name"]), manifest)

    async def patch(
        self, kind: str, namespace: str, name: str, patch: Manifest, subresource: str | None = None
    ) -> Manifest:
        """A JSON merge patch (RFC 7386). Returns the live object."""
        path = self._patched(kind, namespace, name, subresource)
        return await self._call("PATCH", path, patch, "application/merge-patch+json")

    async def json_patch(
        self, kind: str, namespace: str, name: str, operations: Sequence[Manifest], subresource: str | None = None
    ) -> Manifest:
        """A JSON patch (RFC 6902); an error with status 422 if a `test` fails. Returns the live object."""
        path = self._patched(kind, namespace, name, subresource)
        return await self._call("PATCH", path, list(operations), "application/json-patch+json")

    def _patched(self, kind: str, namespace: str, name: str, subresource: str | None) -> str:
        return f"{object_path(kind, namespace, name, subresource)}?{urlencode({'fieldManager': self._field_manager})}"

    async def get_or_create(self, manifest: Manifest) -> Manifest:
        """The object of this name, made from `manifest` where there is none. Concurrent callers get the same object."""
        kind, namespace, name = manifest["kind"], manifest["metadata"]["namespace"], manifest["metadata"]["name"]
        live = await self.get(kind, namespace, name)
        if live is not None:
            return live
        try:
            return await self.create(manifest)
        except KubeApiError as error:
            if error.status != 409:
                raise
        return await self._call("GET", object_path(kind, namespace, name))

    async def delete(self, kind: str, namespace: str, name: str, uid: str | None = None) -> None:
        """Deletes the object and, in the background, what it owns. No error if the object is already deleted, or if
        `uid` is given and the object has another uid."""
        options: Manifest = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        gone = {404}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
            gone.add(409)
        try:
            await self._call("DELETE", object_path(kind, namespace, name), options)
        except KubeApiError as error:
            if error.status not in gone:
                raise

    async def _call(
        self,
        method: str,
        path: str,
        body: Manifest | Sequence[Manifest] | None = None,
        content_type: str = "application/json",
        *,
        action: str = "",
    ) -> Manifest:
        action = action or f"{method} {path.partition('?')[0]}"
        answer = await self._open(action, method, path, self._limits, body, content_type)
        with _readable_errors(action):
            async with answer:
                found = json_object(await answer.read())
        if found is None:
            raise KubeApiError(action, answer.status, "the answer is no JSON object: is a proxy in the way?")
        return found

    async def _open(
        self,
        action: str,
        method: str,
        path: str,
        limits: aiohttp.ClientTimeout,
        body: Manifest | Sequence[Manifest] | None = None,
        content_type: str = "application/json",
    ) -> aiohttp.ClientResponse:
        """A response with status 2xx, which the caller closes. `action` is its name in errors."""
        if method != "GET" and not self._may_write():
            raise KubeApiError(action, 0, "not sent: this process no longer leads")
        request = await self._client.param_serialize(
            method,
            path,
            header_params={"Accept": "application/json", "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        with _readable_errors(action):
            answer: aiohttp.ClientResponse = (await self._client.call_api(*request, _request_timeout=limits)).response
            if not 200 <= answer.status < 300:
                async with answer:
                    raise refusal(action, answer.status, await answer.read(), answer.headers.get("Retry-After"))
            return answer


@contextmanager
def _readable_errors(action: str) -> Iterator[None]:
    """Converts connection errors and unexpected responses to KubeApiError."""
    try:
        yield
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        message = f"the API server does not answer: {str(error) or type(error).__name__}"
        raise KubeApiError(action, 0, message) from error
    except (ValueError, KeyError, TypeError) as error:
        message = "the answer is not the Kubernetes API's: is a proxy in the way?"
        raise KubeApiError(action, 0, message) from error
