"""Flags of the command `inflight-gateway`."""

from __future__ import annotations

import argparse
import socket
from pathlib import Path
from urllib.parse import urlsplit

from inflight_base import logs
from inflight_base.manifest.names import CLASS_EXPECTED, CLASS_PATTERN, DEFAULT_CLASS, POOL_PORTS
from inflight_gateway.settings import CA_FILE, GATEWAY_KEY_FILE, LINK_PORT, EnvoySettings, Jwt, Sockets
from inflight_settings.flag_types import between, matching, whole

count = whole("a whole number from 1 to 64", 1, 64)
"""Parser of a number of processes."""
_mebibytes = whole("a whole number of MiB from 64 to 1048576", 64, 2**20)
_port = whole("a port from 0 to 65535", 0, 65535)
_rate = whole("a whole number from 0 to 1000000", 0, 1_000_000)
_ORIGIN = r"\*|[a-z][a-z0-9+.-]*://[^\s/?#@*,A-Z]+"
_seconds = between(0, 86_400, " of seconds")


def envoy(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that only `inflight-gateway envoy-config` has."""
    parser.add_argument(
        "--port",
        type=_port,
        default=8080,
        metavar="PORT",
        help="port for clients without TLS; 0: none (default: 8080)",
    )
    parser.add_argument(
        "--relays", type=count, default=1, metavar="N", help="relay processes, as the relay's --processes (default: 1)"
    )
    parser.add_argument(
        "--memory",
        type=_mebibytes,
        default=1024,
        metavar="MIB",
        help="memory that Envoy may use, in MiB: at 80%% it refuses new requests with status 503, at 90%% new"
        " connections (default: 1024)",
    )
    parser.add_argument(
        "--requests-per-second",
        type=_rate,
        default=0,
        metavar="N",
        help="most requests of one client's address; further ones get status 429; 0: unlimited (default: 0)",
    )
    parser.add_argument(
        "--idle-timeout",
        type=_seconds,
        default=120.0,
        metavar="SECONDS",
        help="connections of clients without a request are closed after this time (default: 120)",
    )
    parser.add_argument(
        "--tls-dir",
        type=Path,
        metavar="FOLDER",
        help="serve TLS with tls.crt and tls.key of this folder, also new ones that replace them; needs --output, since"
        " a second file, certificate.json, is written beside it (default: no TLS)",
    )
    parser.add_argument(
        "--tls-port", type=_port, default=8443, metavar="PORT", help="port for clients with TLS (default: 8443)"
    )
    parser.add_argument(
        "--jwt-issuer",
        default="",
        metavar="ISSUER",
        help="verify JSON Web Tokens of this issuer in Authorization (default: tokens are not verified)",
    )
    parser.add_argument(
        "--jwt-audience",
        action="append",
        default=[],
        metavar="NAME",
        help="a token must have this audience; repeat it to allow others (default: any)",
    )
    parser.add_argument(
        "--jwt-tenant-claim",
        default="tenant",
        metavar="NAME",
        help="claim that names the tenant; parts of a nested one are joined by a dot (default: tenant)",
    )
    keys = parser.add_mutually_exclusive_group()
    keys.add_argument("--jwks-file", type=Path, metavar="FILE", help="the issuer's keys, as a JSON Web Key Set")
    keys.add_argument("--jwks-uri", type=_https, metavar="URI", help="where to fetch them, https://...")
    parser.add_argument(
        "--jwks-ca",
        type=Path,
        default=CA_FILE,
        metavar="FILE",
        help=f"authorities that sign the certificate of the server of --jwks-uri, as PEM (default: {CA_FILE})",
    )
    parser.add_argument(
        "--allowed-origin",
        type=matching(_ORIGIN, "* or an origin, SCHEME://HOST or SCHEME://HOST:PORT, as browsers send it"),
        action="append",
        default=[],
        metavar="ORIGIN",
        help="pages of this origin may send requests from browsers (CORS); repeat it for several; * for all (default:"
        " none)",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write it there (default: standard output)")


def envoy_settings(arguments: argparse.Namespace) -> EnvoySettings:
    """Returns what the flags of `envoy-config` say.

    Raises:
        ValueError: flags that do not go together; the message says which.
    """
    jwt = None
    if bool(arguments.jwt_issuer) != bool(arguments.jwks_file or arguments.jwks_uri):
        raise ValueError("--jwt-issuer needs --jwks-file or --jwks-uri, and these need it")
    if arguments.jwt_issuer:
        jwt = Jwt(
            arguments.jwt_issuer,
            tuple(arguments.jwt_audience),
            arguments.jwt_tenant_claim,
            arguments.jwks_file,
            arguments.jwks_uri or "",
            arguments.jwks_ca,
        )
    if arguments.tls_dir is not None and arguments.output is None:
        raise ValueError("--tls-dir needs --output")
    if arguments.tls_dir is None and not arguments.port:
        raise ValueError("--port 0 needs --tls-dir")
    return EnvoySettings(
        Sockets(arguments.run_dir),
        arguments.port,
        arguments.relays,
        arguments.memory << 20,
        arguments.requests_per_second,
        arguments.idle_timeout,
        arguments.tls_dir,
        arguments.tls_port,
        jwt,
        tuple(arguments.allowed_origin),
    )


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
        "--class-name",
        type=matching(CLASS_PATTERN, CLASS_EXPECTED),
        default=DEFAULT_CLASS,
        metavar="NAME",
        help="serve only InferenceServices of this class, as spec.className has it: that of the operator of the same"
        f" installation (default: {DEFAULT_CLASS})",
    )
    parser.add_argument(
        "--http-port",
        type=_port,
        default=9003,
        metavar="PORT",
        help="port of /metrics, /healthz, /readyz and the signed /v1/state; 0 takes a free one (default: 9003)",
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
    parser.add_argument(
        "--service",
        type=_peers,
        default="",
        metavar="NAMESPACE/NAME",
        help="Service of the gateway itself: requests to its address go by their model too (default: none)",
    )
    parser.add_argument(
        "--peers",
        type=_peers,
        default="",
        metavar="NAMESPACE/NAME",
        help="headless Service of the gateway's pods: each service belongs to one of the ready ones (default: all"
        " belong to this one)",
    )
    parser.add_argument(
        "--link-port",
        type=_port,
        metavar="PORT",
        help="port for the relays of the gateway's other pods, the same in all of them; 0 takes a free one (default:"
        f" {LINK_PORT} with --peers, else none)",
    )
    parser.add_argument(
        "--local-port",
        type=_port,
        default=9004,
        metavar="PORT",
        help="port of /v1/state and /v1/picks without signatures, on loopback only, for `kubectl port-forward`; 0 takes"
        " a free one (default: 9004)",
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
        help="key that signs requests to engines and streams between gateway pods; the file `previous` beside it may"
        " have the key before. Read again when they change; without the file services with API keys get 503"
        f" (default: {GATEWAY_KEY_FILE})",
    )
    parser.add_argument(
        "--drain-min",
        type=_seconds,
        default=15.0,
        metavar="SECONDS",
        help="after SIGTERM, how long new requests are still served, until clients find other gateway pods"
        " (default: 15)",
    )
    parser.add_argument(
        "--access-log",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="a log line for each request that ended",
    )
    parser.add_argument(
        "--name",
        default=socket.gethostname(),
        metavar="NAME",
        help="name of this gateway pod, as in the Service of --peers (default: the host name)",
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


def _https(text: str) -> str:
    address = urlsplit(text)
    if address.scheme != "https" or not address.hostname:
        raise argparse.ArgumentTypeError(f"{text!r} is not https://HOST/...")
    return text
