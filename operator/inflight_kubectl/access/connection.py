"""HTTP and websocket calls to an API server.

The `kubernetes` package holds certificates, tokens, exec plugins and proxies; importing it takes most of a second, so
only code that connects imports this module.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast
from urllib.parse import urlencode

import urllib3
from kubernetes import client
from kubernetes.stream import ws_client
from websocket import WebSocket, WebSocketBadStatusException, WebSocketException

from inflight_base.kube.changes import Event, event_of
from inflight_base.kube.errors import json_object
from inflight_kubectl.access.api_problems import UnreachableProblem, cause, refusal

CONNECT_SECONDS = 4.0
READ_SECONDS = 15.0

Json = dict[str, Any]


class Connection:
    """Connection to an API server, with the credentials of a context. Safe to use from several threads.

    Attributes:
        context: name of the context; empty inside a pod.
        namespace: namespace of the context, or `default`.
        host: URL of the API server.
    """

    def __init__(self, configuration: Any, context: str, namespace: str) -> None:
        # Retries once for an idle connection that was closed; an unreachable API server is reported at once.
        configuration.retries = urllib3.Retry(total=1, connect=0, read=1, redirect=0, status=0)
        self._api = client.ApiClient(configuration)
        self.context = context
        self.namespace = namespace
        self.host: str = configuration.host

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        content_type: str = "application/json",
        seconds: float = READ_SECONDS,
    ) -> Json:
        """Sends a request; returns the JSON of the response.

        Raises:
            ApiProblem: any other status than 2xx.
            UnreachableProblem: no response within `seconds`.
        """
        with self._open(method, path, query, body, content_type, seconds) as response:
            return self._object(response.data)

    @contextmanager
    def watch(self, path: str, query: Mapping[str, str], seconds: float) -> Iterator[Iterator[Event]]:
        """Watches: yields the events as they arrive.

        Args:
            seconds: maximum time without data before the watch counts as lost.

        Raises:
            ApiProblem, UnreachableProblem: see `request`; also while reading.
            KubeApiError: the API server ends the watch; while reading.
        """
        with self._open("GET", path, query, None, "", seconds, stream=True) as response:
            yield self._events(path, response)

    def _events(self, path: str, response: urllib3.BaseHTTPResponse) -> Iterator[Event]:
        rest = b""
        try:
            for chunk in response.stream(1 << 16):
                *lines, rest = (rest + chunk).split(b"\n")
                yield from (event_of(path, line) for line in lines if line)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._unreachable(error) from error
        except (ValueError, KeyError, TypeError) as error:
            raise self._no_api_server() from error

    def _object(self, text: bytes) -> Json:
        found = json_object(text)
        if found is None:
            raise self._no_api_server()
        return found

    def _no_api_server(self) -> UnreachableProblem:
        return UnreachableProblem(
            f"{self.host} answers, but not as a Kubernetes API server", "Correct the address in the kubeconfig"
        )

    def websocket(self, path: str, protocol: str) -> WebSocket:
        """Opens a websocket to a streaming subresource such as `portforward`.

        Raises:
            ApiProblem: the API server rejects it.
            UnreachableProblem: it does not respond.
        """
        headers = {"sec-websocket-protocol": protocol}
        self._authorize(headers, path, "GET")
        lower = {name.lower(): value for name, value in headers.items()}
        url = ws_client.get_websocket_url(self.host + path)
        try:
            return cast(WebSocket, ws_client.create_websocket(self._api.configuration, url, lower))
        except WebSocketBadStatusException as error:
            raise refusal(error.status_code, error.resp_body or b"", path, self.context) from error
        except (WebSocketException, OSError) as error:
            raise self._unreachable(error) from error

    @contextmanager
    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Json | None,
        content_type: str,
        seconds: float,
        *,
        stream: bool = False,
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        headers = {"Accept": "application/json", "User-Agent": "kubectl-inflight"}
        if body is not None:
            headers["Content-Type"] = content_type
        self._authorize(headers, path, method)
        url = self.host + path + (f"?{urlencode(query)}" if query else "")
        try:
            response = self._api.rest_client.pool_manager.request(
                method,
                url,
                body=None if body is None else json.dumps(body),
                headers=headers,
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=seconds),
                preload_content=not stream,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._unreachable(error) from error
        try:
            if not 200 <= response.status < 300:
                raise refusal(response.status, response.data, path, self.context)
            yield response
        finally:
            response.close() if stream else response.release_conn()

    def _authorize(self, headers: dict[str, str], path: str, method: str) -> None:
        self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, None)

    def _unreachable(self, error: Exception) -> UnreachableProblem:
        where = f"context {self.context}" if self.context else "this pod's service account"
        return UnreachableProblem(
            f"the API server {self.host} does not answer: {cause(error)}",
            f"Start the cluster of {where}, or choose another with --context or --kubeconfig",
        )
