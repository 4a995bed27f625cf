"""Flags of the command `inflight-gateway`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from inflight_base import logs
from inflight_base.manifest.names import POOL_PORTS
from inflight_gateway.settings import GATEWAY_KEY_FILE


def _whole(expected: str, least: int, most: int) -> Callable[[str], int]:
    """Returns a parser of whole numbers. Args: expected: what the error message asks for."""

    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not {expected}")
        return int(text)

    return parse


count = _whole("a whole number from 0 to 64", 0, 64)
"""Parser of a number of processes."""
mebibytes = _whole("a whole number of MiB from 64 to 1048576", 64, 2**20)
"""Parser of an amount of memory, in MiB."""
_port = _whole("a port from 0 to 65535", 0, 65535)


def picker(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that only `inflight-gateway picker` has."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--static", type=Path, metavar="FILE", help="YAML file with services and endpoints, instead of Kubernetes"
    )
    source.add_argument("--kubeconfig", metavar="FILE", help="kubeconfig (default: the service account of the pod)")
    parser.add_argument(
        "--namespace",
        action="append",
        default=[],
        metavar="NAME",
        help="serve this namespace only; repeat it for several (default: all)",
    )
    parser.add_argument(
        "--port", type=_port, default=8080, metavar="PORT", help="port for clients, of Envoy (default: 8080)"
    )
    parser.add_argument(
        "--http-port",
        type=_port,
        default=9003,
        metavar="PORT",
        help="port of /metrics, /healthz, /readyz, /v1/state and /v1/picks; 0 takes a free one (default: 9003)",
    )
    parser.add_argument(
        "--ext-proc-port",
        type=_shared_port,
        metavar="PORT",
        help="port of external processing (gRPC), for gateways that use this picker as their endpoint picker; with it,"
        f" ports {POOL_PORTS[0]} to {POOL_PORTS[-1]} are those of InferencePools (default: not served)",
    )
    parser.add_argument(
        "--ext-proc-tls",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="TLS on these ports, with a certificate that the picker signs itself when it starts: gateways do not"
        " verify the certificate of an endpoint picker (default: on)",
    )
    parser.add_argument(
        "--relays",
        type=count,
        default=1,
        metavar="N",
        help="relay processes; 0: none, answers are not continued at another replica (default: 1)",
    )
    parser.add_argument(
        "--peers",
        type=_peers,
        default="",
        metavar="NAMESPACE/NAME",
        help="Service of the gateway's pods: they tell each other their load and share limits (default: no peers)",
    )
    parser.add_argument(
        "--local-port",
        type=_port,
        default=9004,
        metavar="PORT",
        help="port of /v1/picks on loopback only, for `kubectl port-forward`; 0 takes a free one (default: 9004)",
    )
    parser.add_argument(
        "--usage-dir",
        type=Path,
        metavar="FOLDER",
        help="usage of tenants is written there, as JSON lines, and read again at the start (default: not written)",
    )
    parser.add_argument(
        "--gateway-key-file",
        type=Path,
        default=GATEWAY_KEY_FILE,
        metavar="FILE",
        help="key that signs tenants for engines and messages to peers; without the file engines are not told the"
        f" tenant (default: {GATEWAY_KEY_FILE})",
    )
    parser.add_argument(
        "--drain-min",
        type=_seconds,
        default=5.0,
        metavar="SECONDS",
        help="after SIGTERM, how long new requests are still served, until clients find other gateway pods"
        " (default: 5)",
    )
    parser.add_argument(
        "--access-log",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="a log line for each request that ended",
    )


def hosts(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of picker and relay on which services a request may name."""
    parser.add_argument(
        "--cluster-domain",
        default="cluster.local",
        metavar="DOMAIN",
        help="DNS domain of the cluster (default: cluster.local)",
    )
    parser.add_argument(
        "--model-namespace",
        action="append",
        default=[],
        metavar="NAME",
        help="requests whose Host names no service may choose a service of this namespace by their model; repeat it for"
        " several (default: none)",
    )


def process(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of commands that run until a signal."""
    parser.add_argument(
        "--drain-max",
        type=_seconds,
        default=600.0,
        metavar="SECONDS",
        help="after SIGTERM, how long running requests may take to end (default: 600)",
    )
    parser.add_argument(
        "--log-format", choices=logs.FORMATS, default="text", help="format of log lines (default: text)"
    )
    parser.add_argument(
        "--log-level", choices=logs.LEVELS, default="info", help="lowest level of log lines (default: info)"
    )


def _peers(text: str) -> str:
    namespace, _, name = text.partition("/")
    if text and (not namespace or not name or "/" in name):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAMESPACE/NAME")
    return text


def _shared_port(text: str) -> int:
    port = _port(text)
    if port in POOL_PORTS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not free: ports {POOL_PORTS[0]} to {POOL_PORTS[-1]} are those of InferencePools"
        )
    return port


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to 86400")
    return seconds
