"""TLS for clients. Envoy reads the certificate again when its folder changes, which needs a secret of its own file:
https://www.envoyproxy.io/docs/envoy/v1.40.0/configuration/security/secret."""

from __future__ import annotations

from pathlib import Path

from inflight_gateway.proxy.resources import Json, extension, file, typed

_NAME = "certificate"


def tls(secret: Path) -> Json:
    """Returns the transport socket. Args: secret: file with `certificate`."""
    source = {"path_config_source": {"path": str(secret)}, "resource_api_version": "V3"}
    return extension(
        "transport_sockets.tls",
        "transport_sockets.tls.v3.DownstreamTlsContext",
        common_tls_context={
            "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
            "alpn_protocols": ["h2", "http/1.1"],
            "tls_certificate_sds_secret_configs": [{"name": _NAME, "sds_config": source}],
        },
    )


def certificate(folder: Path) -> Json:
    """Returns the content of the secret's file. Args: folder: `tls.crt` and `tls.key`, as cert-manager names them."""
    pair = {
        "certificate_chain": file(folder / "tls.crt"),
        "private_key": file(folder / "tls.key"),
        "watched_directory": {"path": str(folder)},
    }
    secret = typed("envoy.extensions.transport_sockets.tls.v3.Secret", name=_NAME, tls_certificate=pair)
    return {"resources": [secret]}
