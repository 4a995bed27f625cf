"""Kubeconfig files: which server, trusted by which authority, as whom."""

from __future__ import annotations

import base64
from pathlib import Path

import yaml

from tools.localcluster.files import write_whole


def render(server: str, authority: bytes, certificate: bytes, key: bytes) -> str:
    """A kubeconfig with one cluster, one user and everything inside it; arguments are PEM."""

    def data(pem: bytes) -> str:
        return base64.b64encode(pem).decode()

    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "inflight",
            "clusters": [
                {"name": "inflight", "cluster": {"server": server, "certificate-authority-data": data(authority)}}
            ],
            "users": [
                {
                    "name": "inflight",
                    "user": {"client-certificate-data": data(certificate), "client-key-data": data(key)},
                }
            ],
            "contexts": [{"name": "inflight", "context": {"cluster": "inflight", "user": "inflight"}}],
        },
        sort_keys=False,
    )


def write(pki: Path, user: str, server: str) -> Path:
    """Write `USER.kubeconfig` beside the user's certificate; its path. Programs may be reading an earlier one."""
    path = pki / f"{user}.kubeconfig"
    text = render(
        server,
        (pki / "ca.crt").read_bytes(),
        (pki / f"{user}.crt").read_bytes(),
        (pki / f"{user}.key").read_bytes(),
    )
    write_whole(path, text, mode=0o600)
    return path
