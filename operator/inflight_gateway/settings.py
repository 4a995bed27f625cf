"""Settings of the gateway's programs, as flags give them, and its listen address."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path

from inflight_base.manifest.names import DEFAULT_CLASS
from inflight_settings.requests import MAX_BODY_BYTES as MAX_BODY_BYTES

RUN_DIR = Path("/run/inflight-gateway")
"""Folder of the UNIX sockets; the containers of a gateway pod share it."""

LINK_PORT = 9005
"""Port where a picker takes the streams of relays of other gateway pods."""

GATEWAY_KEY_FILE = Path("/etc/inflight-gateway/key")


@dataclass(frozen=True, slots=True)
class Sockets:
    """UNIX sockets between Envoy, relays and picker."""

    run_dir: Path = RUN_DIR

    @property
    def picker(self) -> Path:
        """Messages of the relays, `link.wire`."""
        return self.run_dir / "picker.sock"

    @property
    def admin(self) -> Path:
        """HTTP: Envoy's admin interface."""
        return self.run_dir / "admin.sock"

    def relay(self, index: int) -> Path:
        """HTTP: relay process `index`, from 0."""
        return self.run_dir / f"relay-{index}.sock"


@dataclass(frozen=True, slots=True)
class PickerSettings:
    """Flags of `inflight-gateway picker`.

    Attributes:
        static: YAML file with services and endpoints; None: Kubernetes discovery.
        kubeconfig: None: the service account of the pod.
        namespaces: namespaces to serve; empty: all.
        class_name: class of the services to serve.
        http_port: port of metrics, health and state.
        cluster_domain: DNS domain of the cluster; names of services end with it.
        peers: name of the headless Service of the gateway's pods; empty: no other gateway pods.
        link_port: port for the relays of other gateway pods, the same in all pods; 0 takes a free one; None: none.
        drain_min_s, drain_max_s: seconds of a graceful shutdown, at least and at most.
        name: name of this gateway pod.
        ext_proc_port: TCP port of external processing for other gateways; None: no port for other gateways is open,
            nor any port of InferencePools.
        ext_proc_tls: whether these ports take TLS.
        model_namespaces: namespaces whose services a request may choose by its model alone; empty: none.
        usage_dir: folder for usage of tenants; None: usage is not written.
        local_port: port on loopback of load and picks; 0 takes a free one.
        service: NAMESPACE/NAME of the gateway's own Service; empty: its address names no service.
    """

    sockets: Sockets = Sockets()
    static: Path | None = None
    kubeconfig: str | None = None
    namespaces: tuple[str, ...] = ()
    class_name: str = DEFAULT_CLASS
    http_port: int = 9003
    cluster_domain: str = "cluster.local"
    peers: str = ""
    link_port: int | None = None
    gateway_key_file: Path = GATEWAY_KEY_FILE
    drain_min_s: float = 15.0
    drain_max_s: float = 600.0
    access_log: bool = True
    name: str = field(default_factory=socket.gethostname)
    ext_proc_port: int | None = None
    ext_proc_tls: bool = True
    model_namespaces: tuple[str, ...] = ()
    usage_dir: Path | None = None
    local_port: int = 9004
    service: str = ""


CA_FILE = Path("/etc/ssl/certs/ca-certificates.crt")
"""Authorities that the image of Envoy trusts."""


@dataclass(frozen=True, slots=True)
class Jwt:
    """JSON Web Tokens of one issuer.

    Attributes:
        audiences: a token has one of these; empty: any.
        tenant_claim: its value names the tenant; parts of a nested claim are joined by `.`.
        jwks_file: the issuer's keys (JSON Web Key Set); None: `jwks_uri` has them.
        jwks_ca: authorities that sign the certificate of the server of `jwks_uri`.
    """

    issuer: str
    audiences: tuple[str, ...] = ()
    tenant_claim: str = "tenant"
    jwks_file: Path | None = None
    jwks_uri: str = ""
    jwks_ca: Path = CA_FILE


@dataclass(frozen=True, slots=True)
class EnvoySettings:
    """Flags of `inflight-gateway envoy-config`.

    Attributes:
        port: port for clients without TLS; 0: none.
        relays: relay processes.
        memory: bytes that Envoy may use.
        requests_per_second: most requests of one address; 0: unlimited.
        idle_s: seconds after which a connection without a request is closed.
        tls_dir: folder with `tls.crt` and `tls.key`; None: no TLS. tls_port: port for clients with TLS.
        jwt: None: tokens are not verified.
        allowed_origins: pages of these origins may ask from browsers (CORS), `*` for all.
    """

    sockets: Sockets = Sockets()
    port: int = 8080
    relays: int = 1
    memory: int = 2**30
    requests_per_second: int = 0
    idle_s: float = 120.0
    tls_dir: Path | None = None
    tls_port: int = 8443
    jwt: Jwt | None = None
    allowed_origins: tuple[str, ...] = ()


def any_address() -> str:
    """Returns `::`, all addresses of this pod, which takes IPv4 connections too; `0.0.0.0` on nodes without IPv6."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::", 0))
    except OSError:
        return "0.0.0.0"
    return "::"
