"""The API server and credentials that a kubeconfig names, read by the `kubernetes` package."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

from kubernetes import client, config

from inflight_kubectl.access.connection import Connection, Json
from inflight_kubectl.output import Problem


def connect(kubeconfig: str | None, context: str | None) -> Connection:
    """Opens a connection by the kubeconfig; inside a pod without one, by its service account.

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
    """Returns the names of the contexts of a kubeconfig.

    Raises:
        Problem: there is none, or it cannot be read.
    """
    return [
        one["name"] for one in _read(str(Path(kubeconfig).expanduser()) if kubeconfig else None).get("contexts") or []
    ]


def _context(path: str | None, wanted: str | None) -> tuple[str, str]:
    """Returns name and namespace of a context; None takes the current one."""
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
    """Returns the plain value below the library's nodes."""
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
