"""Scrape configuration of Prometheus from PodMonitor objects. Pure.

The relabelling is that of the Prometheus operator for a PodMonitor, so that series have the labels that users see.
Pods are found by this program, not by Prometheus, which Debian builds without Kubernetes service discovery: it writes
targets with the `__meta_kubernetes_` labels into a file. Each target is scraped through the API server's proxy, which
works with any cluster that kubectl can reach.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inflight_base.manifest import Manifest

META = "__meta_kubernetes_"


@dataclass(frozen=True, slots=True)
class Access:
    """Access to the API server.

    Attributes:
        address: host and port.
        tls: Prometheus' `tls_config`.
    """

    address: str
    tls: Mapping[str, str]
    token_file: str | None = None


@dataclass(frozen=True, slots=True)
class Scraping:
    """Configuration of Prometheus.

    Attributes:
        interval: between two scrapes, in seconds; the monitors' own interval is for days, not minutes.
        targets_folder: where the files with targets are, one for each job.
        rules: files of recording rules and alerts.
    """

    access: Access
    interval: float
    targets_folder: Path
    rules: Sequence[Path]


def job_name(monitor: Manifest, index: int = 0) -> str:
    """The job name that the Prometheus operator would generate."""
    return f"podMonitor/{monitor['metadata']['namespace']}/{monitor['metadata']['name']}/{index}"


def targets_file(monitor: Manifest, folder: Path) -> Path:
    """Path of a monitor's target file."""
    return folder / (job_name(monitor).replace("/", "_") + ".json")


def configuration(monitors: Iterable[Manifest], scraping: Scraping) -> dict[str, Any]:
    """The whole configuration file of Prometheus."""
    interval = _milliseconds(scraping.interval)
    return {
        "global": {"scrape_interval": interval, "evaluation_interval": interval, "scrape_timeout": interval},
        "rule_files": [str(path) for path in scraping.rules],
        "scrape_configs": [_scrape_config(monitor, scraping) for monitor in monitors],
    }


def _scrape_config(monitor: Manifest, scraping: Scraping) -> dict[str, Any]:
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    config: dict[str, Any] = {
        "job_name": job_name(monitor),
        "scheme": "https",
        "metrics_path": endpoint.get("path", "/metrics"),
        "tls_config": dict(scraping.access.tls),
        "honor_labels": bool(endpoint.get("honorLabels", False)),
        "file_sd_configs": [{"files": [str(targets_file(monitor, scraping.targets_folder))]}],
        "relabel_configs": [*_found(monitor, endpoint), *map(_relabelling, endpoint.get("relabelings") or ())],
    }
    if scraping.access.token_file:
        config["authorization"] = {"credentials_file": scraping.access.token_file}
    config["relabel_configs"] += _THROUGH_PROXY
    return config


def _found(monitor: Manifest, endpoint: Manifest) -> list[dict[str, Any]]:
    """Relabelling that the Prometheus operator puts before a monitor's own."""
    metadata = monitor["metadata"]
    keep = [
        {"action": "keep", "source_labels": [f"{META}pod_label_{_sanitized(label)}"], "regex": re.escape(value)}
        for label, value in sorted(monitor["spec"]["selector"]["matchLabels"].items())
    ]
    return [
        {"action": "drop", "source_labels": [f"{META}pod_phase"], "regex": "(Failed|Succeeded)"},
        *keep,
        {"action": "keep", "source_labels": [f"{META}pod_container_port_name"], "regex": endpoint["port"]},
        {"source_labels": [f"{META}namespace"], "target_label": "namespace"},
        {"source_labels": [f"{META}pod_container_name"], "target_label": "container"},
        {"source_labels": [f"{META}pod_name"], "target_label": "pod"},
        {"target_label": "job", "replacement": f"{metadata['namespace']}/{metadata['name']}"},
        {"target_label": "endpoint", "replacement": endpoint["port"]},
        {"source_labels": ["__address__"], "target_label": "instance"},
    ]


def _relabelling(own: Manifest) -> dict[str, Any]:
    """A monitor's relabelling in the names of Prometheus' configuration."""
    names = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
    return {names.get(key, key): value for key, value in own.items()}


_PARTS = (f"{META}namespace", f"{META}pod_name", f"{META}pod_container_port_number", "__metrics_path__")
_THROUGH_PROXY = (
    {
        "source_labels": list(_PARTS),
        "regex": "(.+);(.+);(.+);(.+)",
        "target_label": "__metrics_path__",
        "replacement": "/api/v1/namespaces/$1/pods/$2:$3/proxy$4",
    },
    {"source_labels": ["__api_server"], "target_label": "__address__"},
)
"""The API server in place of the pod's address, after all labels are made."""


def targets(pods: Iterable[Manifest], access: Access) -> list[dict[str, Any]]:
    """A target for each container port of each pod that has an address, as service discovery would find them."""
    return [
        {
            "targets": [f"{pod['status']['podIP']}:{port['containerPort']}"],
            "labels": {"__api_server": access.address, **_labels(pod, container["name"], port)},
        }
        for pod in pods
        if pod.get("status", {}).get("podIP")
        for container in pod["spec"]["containers"]
        for port in container.get("ports") or ()
    ]


def _labels(pod: Manifest, container: str, port: Manifest) -> dict[str, str]:
    metadata = pod["metadata"]
    of_pod = {
        f"{META}pod_{kind}_{_sanitized(name)}": value
        for kind in ("label", "annotation")
        for name, value in (metadata.get(f"{kind}s") or {}).items()
    }
    return {
        f"{META}namespace": metadata["namespace"],
        f"{META}pod_name": metadata["name"],
        f"{META}pod_phase": pod["status"]["phase"],
        f"{META}pod_container_name": container,
        f"{META}pod_container_port_name": port.get("name", ""),
        f"{META}pod_container_port_number": str(port["containerPort"]),
        **of_pod,
    }


def _sanitized(label: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", label)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f}ms"
