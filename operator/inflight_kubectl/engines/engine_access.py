"""HTTP to engines and gateways through the API server's port-forward: no access to the pods' network is needed.

    with forward_to_service(cluster, service) as forward:      # connections are spread over ready pods
        with forward.client() as http:                         # an httpx.Client
            http.get("/v1/models")

A forward listens on a free loopback port, as `kubectl port-forward` does, so any HTTP client can use `forward.url`.
Each connection is one websocket to `pods/NAME/portforward`; its protocol is `v4.channel.k8s.io`: the first byte of a
message is a channel, 0 for data and 1 for errors, and the first message of a channel is the port number.

`kubernetes.stream.portforward` does not replace this: when the API server resets a connection, its thread dies with a
traceback, and its socket stays open without data, so that a client waits until its timeout.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from inflight_kubectl.engines.gateways import Address, behind_gateway, no_gateway, ready_gateways
from inflight_kubectl.output import Problem

if TYPE_CHECKING:
    import httpx
    from websocket import WebSocket

    from inflight_kubectl.access.cluster import Cluster
    from inflight_kubectl.access.connection import Connection
    from inflight_kubectl.access.pods import Pod
    from inflight_kubectl.access.resources import Service

PROTOCOL = "v4.channel.k8s.io"
_DATA, _ERROR = 0, 1
_CHUNK = 1 << 16

REFRESH_SECONDS = 3.0
"""Seconds for which the list of a service's ready pods is used before it is read again."""


class PortForward:
    """A loopback port whose connections end at a pod's port. Close it, or use it in a `with`.

    Args:
        addresses: destinations of new connections; the one with the fewest open connections is used.
        host: header Host of the requests, for a gateway that serves many; None: that of `url`.

    Attributes:
        url: `http://127.0.0.1:PORT`.
        headers: headers of each request.
        problem: reason why the last connection failed; None after a success.
    """

    def __init__(
        self, connection: Connection, addresses: Callable[[], Sequence[Address]], host: str | None = None
    ) -> None:
        self._connection = connection
        self._addresses = addresses
        self.headers = {"host": host} if host else {}
        self._open: Counter[Address] = Counter()
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False
        self.problem: Problem | None = None
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name="port-forward", daemon=True).start()

    def client(self, headers: Mapping[str, str] | None = None, **options: Any) -> httpx.Client:
        """An `httpx.Client` with `url` as its base; `options` are its own, such as `timeout`."""
        import httpx

        return httpx.Client(base_url=self.url, trust_env=False, headers=self.headers | dict(headers or {}), **options)

    def check(self) -> None:
        """Opens one connection and closes it again.

        Raises:
            Problem: no ready pod, forbidden, or no answer.
        """
        address = self._next()
        try:
            open_stream(self._connection, address).close()
        finally:
            self._release(address)

    def close(self) -> None:
        """Closes all connections."""
        with self._lock:
            self._closed = True
            sockets = list(self._sockets)
        # A blocked accept() returns when its socket is shut down, not when it is closed.
        for one in (self._listener, *sockets):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                local, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._closed:
                    local.close()
                    return
                self._sockets.add(local)
            threading.Thread(target=self._carry, args=(local,), name="port-forward connection", daemon=True).start()

    def _carry(self, local: socket.socket) -> None:
        """Carries a connection, from its first byte to its last."""
        address: Address | None = None
        try:
            address = self._next()
            remote = open_stream(self._connection, address)
            self.problem = None
            try:
                said = pump(local, remote)
            finally:
                remote.close()
            if said:
                self.problem = Problem(f"port-forward to pod {address[1]}: {said}")
        except Problem as problem:
            self.problem = problem
        finally:
            if address is not None:
                self._release(address)
            with self._lock:
                self._sockets.discard(local)
            local.close()

    def _next(self) -> Address:
        addresses = self._addresses()
        if not addresses:
            raise Problem(
                "no pod is ready to take requests", "Run `kubectl inflight why SERVICE` to see what it waits for"
            )
        with self._lock:
            address = min(addresses, key=lambda one: self._open[one])
            self._open[address] += 1
        return address

    def _release(self, address: Address) -> None:
        with self._lock:
            self._open[address] -= 1


def forward_to_pod(cluster: Cluster, pod: Pod, port: int | None = None) -> PortForward:
    """Opens a forward to one pod.

    Args:
        port: port of the pod; default: that of its OpenAI API, which has /metrics as well unless `servingMetrics` is
            off.
    """
    address = (pod.namespace, pod.name, port or pod.http_port)
    return PortForward(cluster.connection, lambda: [address])


def forward_to_service(cluster: Cluster, service: Service) -> PortForward:
    """Opens a forward to the OpenAI API of a service: connections are spread over the pods that are ready when they
    begin. Behind the gateway these are the gateway's pods, so that a service without replicas can be reached too.

    Raises:
        Problem: no pod is ready, forbidden, or no answer.
    """
    if behind_gateway(service):
        host = f"{service.name}.{service.namespace}"
        ready = _Ready(lambda: [pod.http for pod in ready_gateways(cluster, service)])
        if not ready():
            raise no_gateway(service)
    else:
        host = None
        ready = _Ready(
            lambda: [(pod.namespace, pod.name, pod.http_port) for pod in cluster.pods(service) if pod.serves]
        )
        if not ready():
            detail = next((one.message for one in service.conditions if one.type == "Ready"), "no pod is ready")
            raise Problem(
                f"{service.name} takes no requests: {detail}",
                f"See `kubectl inflight why {service.name} -n {service.namespace}`",
            )
    forward = PortForward(cluster.connection, ready, host)
    try:
        forward.check()
    except Problem:
        forward.close()
        raise
    return forward


class _Ready:
    """Addresses of ready pods, refreshed periodically; the old ones stay while a refresh fails."""

    def __init__(self, read: Callable[[], list[Address]]) -> None:
        self._read = read
        self._known: list[Address] = []
        self._at = float("-inf")
        self._lock = threading.Lock()

    def __call__(self) -> list[Address]:
        with self._lock:
            if time.monotonic() - self._at > REFRESH_SECONDS:
                try:
                    self._known = self._read()
                except Problem:
                    if not self._known:
                        raise
                self._at = time.monotonic()
            return list(self._known)


def open_stream(connection: Connection, address: Address) -> WebSocket:
    """Opens a websocket for one connection to a pod's port.

    Raises:
        Problem: the API server refuses it, or does not answer.
    """
    namespace, name, port = address
    return connection.websocket(f"/api/v1/namespaces/{namespace}/pods/{name}/portforward?ports={port}", PROTOCOL)


def pump(local: socket.socket, remote: WebSocket) -> str:
    """Carries bytes both ways until either side ends.

    Returns:
        The kubelet's error, such as that nothing listens on the port; empty without one.
    """
    from websocket import ABNF, WebSocketException

    begun: set[int] = set()
    below = remote.sock
    if below is None:
        return ""
    try:
        while True:
            readable, _, _ = select.select([local, below], [], [])
            if local in readable:
                data = local.recv(_CHUNK)
                if not data:
                    return ""
                remote.send_binary(bytes((_DATA,)) + data)
            if below not in readable:
                continue
            more = True
            while more:
                code, message = remote.recv_data(control_frame=True)
                if code == ABNF.OPCODE_CLOSE:
                    return ""
                if code == ABNF.OPCODE_BINARY and message:
                    channel, content = message[0], message[1:]
                    if channel not in begun:
                        begun.add(channel)  # the port number
                    elif channel == _ERROR:
                        return bytes(content).decode(errors="replace").strip()
                    elif content:
                        local.sendall(content)
                # Data already decrypted by TLS does not show in select().
                more = isinstance(below, ssl.SSLSocket) and below.pending() > 0
    except (OSError, ValueError, WebSocketException):
        # Either side disconnected; ValueError: its socket was closed before select().
        return ""
