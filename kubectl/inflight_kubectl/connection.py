"""HTTP and websocket calls to the API server that a kubeconfig names, and what their errors mean.

The `kubernetes` package reads the kubeconfig, with its certificates, tokens, exec plugins and proxies; importing it
takes most of a second, so only what connects imports this module.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

import urllib3
from kubernetes import client, config
from kubernetes.stream import ws_client
from websocket import WebSocket, WebSocketBadStatusException, WebSocketException

from inflight_kubectl.output import Problem

CONNECT_SECONDS = 4.0
READ_SECONDS = 15.0

_ECHO = re.compile(r'Invalid value: "(?:[^"\\]|\\.)*": ')
"""What was sent, repeated in a refusal before the reason: it may be a whole object."""

Json = dict[str, Any]


class ApiProblem(Problem):
    """An answer of the API server other than 2xx.

    Attributes:
        status: HTTP status.
        reason: of the Kubernetes Status, such as `Forbidden`; empty without one.
        missing_object: whether the path is right and the object it names does not exist.
    """

    def __init__(self, what: str, remedy: str, status: int, reason: str = "", missing_object: bool = False) -> None:
        super().__init__(what, remedy)
        self.status = status
        self.reason = reason
        self.missing_object = missing_object


class UnreachableProblem(Problem):
    """The API server does not answer."""


class Connection:
    """One API server, with the credentials of one context. Safe to use from several threads.

    Attributes:
        context: its name; empty inside a pod.
        namespace: of the context, or `default`.
        host: URL of the API server.
    """

    def __init__(self, configuration: Any, context: str, namespace: str) -> None:
        # A connection that was closed while idle is tried again once; an API server that is away is told at once.
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
        """One call; returns the JSON of the answer.

        Raises:
            ApiProblem: any other status than 2xx.
            UnreachableProblem: no answer within `seconds`.
        """
        with self._open(method, path, query, body, content_type, seconds) as response:
            return self._object(response.data)

    @contextmanager
    def stream(self, path: str, query: Mapping[str, str], seconds: float) -> Iterator[Iterator[Json]]:
        """A watch: an iterator over the JSON objects of the lines as they come.

        Args:
            seconds: longest silence before it counts as lost.

        Raises:
            ApiProblem, UnreachableProblem: as `request`, also while it is read.
        """
        with self._open("GET", path, query, None, "", seconds, stream=True) as response:
            yield self._lines(response)

    def _lines(self, response: urllib3.BaseHTTPResponse) -> Iterator[Json]:
        rest = b""
        try:
            for chunk in response.stream(1 << 16):
                *lines, rest = (rest + chunk).split(b"\n")
                yield from (self._object(line) for line in lines if line)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._unreachable(error) from error

    def _object(self, text: bytes) -> Json:
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise UnreachableProblem(
                f"{self.host} answers, but not as a Kubernetes API server", "Correct the address in the kubeconfig"
            )
        return found

    def websocket(self, path: str, protocol: str) -> WebSocket:
        """A websocket to a streaming subresource such as `portforward`.

        Raises:
            ApiProblem: the API server refuses it.
            UnreachableProblem: it does not answer.
        """
        headers = {"sec-websocket-protocol": protocol}
        self._authorize(headers, path, "GET")
        lower = {name.lower(): value for name, value in headers.items()}
        url = ws_client.get_websocket_url(self.host + path)
        try:
            return cast(WebSocket, ws_client.create_websocket(self._api.configuration, url, lower))
        except WebSocketBadStatusException as error:
            raise _refusal(error.status_code, error.resp_body or b"", path, self.context) from error
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
                raise _refusal(response.status, response.data, path, self.context)
            yield response
        finally:
            response.close() if stream else response.release_conn()

    def _authorize(self, headers: dict[str, str], path: str, method: str) -> None:
        self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, None)

    def _unreachable(self, error: Exception) -> UnreachableProblem:
        where = f"context {self.context}" if self.context else "this pod's service account"
        return UnreachableProblem(
            f"the API server {self.host} does not answer: {_cause(error)}",
            f"Start the cluster of {where}, or choose another with --context or --kubeconfig",
        )


def connect(kubeconfig: str | None, context: str | None) -> Connection:
    """A connection with what the kubeconfig says; inside a pod without one, with its service account.

    Raises:
        Problem: no kubeconfig, one that cannot be read, or no such context.
    """
    path = str(Path(kubeconfig).expanduser()) if kubeconfig else None
    configuration = type.__call__(client.Configuration)
    if path is None and context is None and not _default_exists() and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return _in_cluster(configuration)
    name, namespace = _context(path, context)
    try:
        config.load_kube_config(path, name, client_configuration=configuration)
    except (config.ConfigException, OSError, ValueError) as error:
        raise Problem(
            f'cannot use context "{name}": {error}', "Correct the kubeconfig, or choose another context with --context"
        ) from error
    return Connection(configuration, name, namespace)


def contexts(kubeconfig: str | None) -> list[str]:
    """Names of the contexts of a kubeconfig.

    Raises:
        Problem: there is none, or it cannot be read.
    """
    return [
        one["name"] for one in _read(str(Path(kubeconfig).expanduser()) if kubeconfig else None).get("contexts") or []
    ]


def _context(path: str | None, wanted: str | None) -> tuple[str, str]:
    """Name and namespace of a context, the current one for None."""
    content = _read(path)
    found = {one["name"]: one.get("context") or {} for one in content.get("contexts") or []}
    name = wanted or content.get("current-context") or ""
    if not name:
        raise Problem(
            "the kubeconfig has no current context", "Set one with `kubectl config use-context NAME`, or give --context"
        )
    if name not in found:
        others = f"There are {', '.join(sorted(found))}" if found else "It has none"
        raise Problem(f'no context "{name}" in the kubeconfig', others)
    return name, found[name].get("namespace") or "default"


def _read(path: str | None) -> Json:
    where = path or _default_files()
    missing = f"no kubeconfig: {where} does not exist"
    remedy = "Give --kubeconfig FILE, or set KUBECONFIG"
    if not (Path(path).exists() if path else _default_exists()):
        raise Problem(missing, remedy)
    try:
        merged = config.kube_config.KubeConfigMerger(where).config
    except Exception as error:  # the YAML parser and the merger have no common error
        raise Problem(f"cannot read kubeconfig {where}: {' '.join(str(error).split())}", remedy) from error
    if merged is None:
        raise Problem(missing, remedy)
    return cast(Json, _unwrapped(merged))


def _unwrapped(node: Any) -> Any:
    """The plain value below the library's nodes."""
    value = getattr(node, "value", node)
    if isinstance(value, dict):
        return {key: _unwrapped(one) for key, one in value.items()}
    return [_unwrapped(one) for one in value] if isinstance(value, list) else value


def _default_files() -> str:
    return os.environ.get("KUBECONFIG") or str(Path("~/.kube/config").expanduser())


def _default_exists() -> bool:
    return any(Path(one).expanduser().exists() for one in _default_files().split(os.pathsep) if one)


def _in_cluster(configuration: Any) -> Connection:
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException as error:
        raise Problem(f"no kubeconfig, and this pod's service account cannot be used: {error}") from error
    namespace = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
    return Connection(configuration, "", namespace.read_text().strip() if namespace.exists() else "default")


def _refusal(status: int, body: bytes, path: str, context: str) -> ApiProblem:
    try:
        content = json.loads(body)
    except ValueError:
        content = {}
    if not isinstance(content, dict):
        content = {}
    message = " ".join(str(content.get("message") or body.decode(errors="replace")).split())
    message = _ECHO.sub("Invalid value: ", message)[:500]
    reason = str(content.get("reason") or "")
    if status == 401:
        whom = f" of context {context}" if context else ""
        return ApiProblem(
            f"the API server refuses the credentials{whom}",
            "Log in again, or choose another context with --context",
            status,
            reason,
        )
    if status == 403:
        remedy = "Ask an administrator for this permission; `kubectl inflight doctor` lists all that the commands need"
        return ApiProblem(f"forbidden: {message.removesuffix('.')}", remedy, status, reason)
    if status == 404 and not (content.get("details") or {}).get("name") and "/inflight.dev/" in path:
        remedy = "Install the chart: helm install inflight helm/inflight -n inflight-system --create-namespace"
        return ApiProblem(
            "this cluster has no InferenceService resource (inflight.dev/v1alpha1)", remedy, status, reason
        )
    missing = status == 404 and bool((content.get("details") or {}).get("name"))
    return ApiProblem(f"the API server answers {status}: {message or 'without a reason'}", "", status, reason, missing)


def _cause(error: BaseException) -> str:
    """The innermost reason, in a few words."""
    while True:
        inner = getattr(error, "reason", None) or error.__cause__
        if not isinstance(inner, BaseException):
            break
        error = inner
    if isinstance(error, (urllib3.exceptions.TimeoutError, TimeoutError)):
        return "it timed out"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[0].lower() + error.strerror[1:]
    return " ".join(str(error).rpartition(": ")[2].split()) or type(error).__name__
