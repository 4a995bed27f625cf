"""Addresses and ports of a node: chosen once so that they meet nothing that the machine already uses."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields


@dataclass(frozen=True)
class Network:
    """The address ranges of a cluster: /24 for pods, /16 for services."""

    pods: str
    services: str

    @property
    def node_address(self) -> str:
        """The node's own address, the pods' gateway: the first of the pods' range.

        A private address on an own device: the API server and the kubelet are reachable from the pods and from
        this machine, not from its neighbours, and it stays when the machine changes its network.
        """
        return str(ipaddress.ip_network(self.pods)[1])

    @property
    def api_service(self) -> str:
        """The service `kubernetes`: always the first address of the range."""
        return str(ipaddress.ip_network(self.services)[1])

    @property
    def dns_service(self) -> str:
        return str(ipaddress.ip_network(self.services)[10])


CANDIDATES = (
    Network("10.244.0.0/24", "10.96.0.0/16"),
    Network("10.154.0.0/24", "10.155.0.0/16"),
    Network("172.29.0.0/24", "172.30.0.0/16"),
    Network("192.168.244.0/24", "10.97.0.0/16"),
)


def choose_network(routes: Sequence[str], candidates: Sequence[Network] = CANDIDATES) -> Network | None:
    """The first candidate that overlaps none of `routes` (networks like `10.0.0.0/8`); None when all do."""
    taken = [ipaddress.ip_network(route, strict=False) for route in routes]

    def is_free(network: Network) -> bool:
        ranges = [ipaddress.ip_network(network.pods), ipaddress.ip_network(network.services)]
        return not any(used.version == own.version and used.overlaps(own) for used in taken for own in ranges)

    return next(filter(is_free, candidates), None)


@dataclass(frozen=True)
class Ports:
    """TCP ports of the components. The defaults are the usual ones."""

    etcd: int = 2379
    etcd_peer: int = 2380
    apiserver: int = 6443
    controller_manager: int = 10257
    scheduler: int = 10259
    kubelet: int = 10250
    kubelet_health: int = 10248
    proxy_health: int = 10256
    proxy_metrics: int = 10249


def choose_ports(is_free: Callable[[int], bool], find_free: Callable[[], int]) -> Ports:
    """The usual port of each component where it is free, else any free one; all different."""
    chosen: dict[str, int] = {}
    for name, usual in asdict(Ports()).items():
        port = usual
        while not (port not in chosen.values() and is_free(port)):
            port = find_free()
        chosen[name] = port
    return Ports(**chosen)


def free_ports() -> Ports:
    """Any free ports, for a control plane that lives beside another one."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in fields(Ports)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return Ports(*ports)


def port_is_free(port: int) -> bool:
    """Returns whether nothing listens on `port` at any address of this machine."""
    try:
        socket.create_server(("", port)).close()
    except OSError:
        return False
    return True


def find_free_port() -> int:
    with socket.create_server(("", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
