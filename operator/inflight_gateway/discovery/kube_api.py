"""Lists and watches of the Kubernetes API, with readable errors.

Protocol: https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import client, config

from inflight_base.manifest import Manifest

PAGE = 500
"""Maximum objects in one page of a list."""

LIST_SECONDS = 30.0
"""For one page."""

WATCH_SECONDS = 60
"""Seconds after which the API server ends a watch, which then resumes. Short, so that a silently dead connection is
detected."""

MAX_EVENT = 2**22
"""Bytes of one event. etcd takes objects of 1.5 MiB."""


class ConnectError(Exception):
    """No usable configuration for the API server; the message says what to do."""


class KubeApiError(Exception):
    """A call failed.

    Attributes:
        status: HTTP status; 0 without a response.
    """

    def __init__(self, action: str, status: int, message: str) -> None:
        super().__init__(f"{action}: {message[:300]}" + (f" (HTTP {status})" if status else ""))
        self.status = status


class Event(NamedTuple):
    """Of a watch.

    Attributes:
        type: ADDED, MODIFIED, DELETED or BOOKMARK; OPEN, without an object, once the API server has accepted the watch.
        version: to continue from.
    """

    type: str
    object: Manifest
    version: str


@dataclass(frozen=True, slots=True)
class Selection:
    """Objects of one kind.

    Attributes:
        path: of the collection, such as /api/v1/namespaces/NAMESPACE/secrets.
    """

    path: str
    label_selector: str = ""
    field_selector: str = ""

    def query(self, **more: str) -> str:
        selectors = {"labelSelector": self.label_selector, "fieldSelector": self.field_selector}
        return f"{self.path}?{urlencode({name: value for name, value in {**selectors, **more}.items() if value})}"


async def load_configuration(kubeconfig: str | None) -> client.Configuration:
    """From a kubeconfig file, or from the pod's service account if unset.

    Raises:
        ConnectError: the file or the service account cannot be used.
    """
    configuration = client.Configuration(connection_pool_maxsize=0)  # one connection for each watch
    try:
        if kubeconfig is None:
            config.load_incluster_config(client_configuration=configuration)
        else:
            await config.load_kube_config(config_file=kubeconfig, client_configuration=configuration)
    except (config.ConfigException, OSError) as error:
        way_out = "give --kubeconfig FILE or --static FILE"
        where = f"kubeconfig {kubeconfig}" if kubeconfig else "the pod's service account"
        raise ConnectError(f"cannot use {where}: {error}: {way_out}") from error
    return configuration


class KubeApi:
    """Args: api_client: closed by the caller."""

    def __init__(self, api_client: client.ApiClient) -> None:
        self._client = api_client

    async def list(self, selection: Selection) -> tuple[list[Manifest], str]:
        """All selected objects, and the resourceVersion to watch from.

        Raises:
            KubeApiError: the call failed. 410: the list expired and must be restarted.
        """
        items: list[Manifest] = []
        following = ""
        while True:
            path = selection.query(limit=str(PAGE), **{"continue": following})
            answer = await self._get(path, aiohttp.ClientTimeout(total=LIST_SECONDS))
            with _readable_errors(path):
                async with answer:
                    page = json.loads(await answer.read())
                items += page["items"] or []
                version, following = page["metadata"]["resourceVersion"], page["metadata"].get("continue", "")
            if not following:
                return items, version

    async def watch(self, selection: Selection, version: str) -> AsyncGenerator[Event, None]:
        """Events since `version`, until the API server ends the watch, which it does after `WATCH_SECONDS`.

        Raises:
            KubeApiError: the call failed. 410: `version` is too old, list again.
        """
        path = selection.query(
            watch="1", allowWatchBookmarks="true", timeoutSeconds=str(WATCH_SECONDS), resourceVersion=version
        )
        answer = await self._get(path, aiohttp.ClientTimeout(connect=5.0, total=WATCH_SECONDS + 15.0))
        with _readable_errors(path):
            async with answer:
                yield Event("OPEN", {}, version)
                rest = b""
                async for chunk in answer.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        yield _event(path, line)
                    if len(rest) > MAX_EVENT:
                        raise KubeApiError(f"GET {path}", 0, f"an event of more than {MAX_EVENT} bytes")

    async def _get(self, path: str, limits: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        request = await self._client.param_serialize(
            "GET", path, header_params={"Accept": "application/json"}, auth_settings=["BearerToken"]
        )
        with _readable_errors(path):
            wrapped = await self._client.call_api(*request, _request_timeout=limits)
            answer: aiohttp.ClientResponse = wrapped.response
            if answer.status != 200:
                async with answer:
                    text = await answer.content.read(2000)
                raise KubeApiError(f"GET {path}", answer.status, _message(text))
            return answer


@contextmanager
def _readable_errors(path: str) -> Iterator[None]:
    """Converts connection errors and unexpected responses to KubeApiError."""
    try:
        yield
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        message = f"the API server does not answer: {str(error) or type(error).__name__}"
        raise KubeApiError(f"GET {path}", 0, message) from error
    except (ValueError, KeyError, TypeError) as error:
        message = "the answer is not the Kubernetes API's: is a proxy in the way?"
        raise KubeApiError(f"GET {path}", 0, message) from error


def _event(path: str, line: bytes) -> Event:
    event = json.loads(line)
    if event["type"] == "ERROR":
        status = event["object"]
        raise KubeApiError(f"GET {path}", int(status.get("code", 500)), str(status.get("message", "")))
    return Event(event["type"], event["object"], event["object"]["metadata"]["resourceVersion"])


def _message(text: bytes) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text.decode(errors="replace")
