"""The PodMonitors of the chart and of the operator, rendered without the other objects, and the pods that they
select."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from inflight_base.manifest import Manifest
from inflight_operator.api.types import InferenceService
from inflight_operator.render.monitor import pod_monitor
from tools.localcluster import ClusterError, kubeconfig_path, kubectl, prometheus
from tools.localcluster.files import write_json
from tools.localcluster.programs import kubectl_program
from tools.localcluster.progress import meanwhile
from tools.prometheus.prometheus import Prometheus, started
from tools.prometheus.scraping import Access, Scraping, configuration, targets, targets_file
from tools.testbed.helm import CHART, rendered

RULES = CHART / "files" / "rules.yaml"
UPDATE_SECONDS = 2.0


def chart_monitors() -> list[Manifest]:
    """The chart's own PodMonitors, of the operator and of the gateway. Raises ClusterError."""
    return rendered(
        "--show-only=templates/monitor.yaml", "--show-only=templates/gateway/monitor.yaml",
        "--set=metrics.monitor.enabled=true,metrics.monitor.kind=PodMonitor,gateway.enabled=true",
    )  # fmt: skip


def engine_monitors(namespaces: Sequence[str] = ()) -> list[Manifest]:
    """The PodMonitor that the operator renders for each service, of some namespaces or of all. Raises ClusterError."""
    listing = json.loads(kubectl("get", "inferenceservices", "-A", "-o", "json"))
    services = [InferenceService.from_dict(item) for item in listing["items"]]
    return [pod_monitor(one) for one in services if not namespaces or one.metadata.namespace in namespaces]


def access(kubeconfig: Path, folder: Path) -> Access:
    """Access to the cluster of `kubeconfig`; writes certificates and keys below `folder`.

    Raises:
        ClusterError: the user of its current context has neither a certificate nor a token.
    """
    # With the current context alone, and the content of all files that it names.
    shown = ("config", "view", "--raw", "--minify", "--flatten", "--output=json")
    config = json.loads(kubectl_program.run(kubeconfig, shown))
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    tls = {
        key: _written(folder / f"{name}.pem", base64.b64decode(data))
        for key, name, source in (
            ("ca_file", "certificate-authority", cluster),
            ("cert_file", "client-certificate", user),
            ("key_file", "client-key", user),
        )
        if (data := source.get(f"{name}-data"))
    }
    token = _written(folder / "token", user["token"].encode()) if "token" in user else user.get("tokenFile")
    if "key_file" not in tls and not token:
        raise ClusterError(f"the user of {kubeconfig} has neither a client certificate nor a token for Prometheus")
    server = urlsplit(cluster["server"])
    return Access(f"{server.hostname}:{server.port or 443}", tls, token)


def _written(path: Path, content: bytes) -> str:
    path.touch(mode=0o600)
    path.write_bytes(content)
    return str(path)


def write_targets(monitors: Sequence[Manifest], scraping: Scraping) -> None:
    """Writes the present pods of monitors to Prometheus' target files. Raises ClusterError."""
    listing = json.loads(kubectl("get", "pods", "-A", "-o", "json"))["items"]
    for monitor in monitors:
        namespace = monitor["metadata"]["namespace"]
        pods = [pod for pod in listing if pod["metadata"]["namespace"] == namespace]
        write_json(targets_file(monitor, scraping.targets_folder), targets(pods, scraping.access))


@contextmanager
def watching(interval: float, namespaces: Sequence[str] = ()) -> Iterator[Prometheus]:
    """A Prometheus that scrapes operator, gateway and engines of the cluster while the block runs.

    It has the labels that the chart's monitors give, and the chart's rules. Services created later are not scraped;
    pods created later are.

    Args:
        interval: between two scrapes, in seconds.
        namespaces: of the services to scrape; none: all.

    Raises:
        ClusterError: there is no cluster, no service in it, or no Prometheus for this machine.
        PrometheusError: it did not start.
    """
    if not (engines := engine_monitors(namespaces)):
        where = f"in {', '.join(namespaces)}" if namespaces else "in the cluster"
        raise ClusterError(f"there is no InferenceService {where}: apply one, such as examples/chat.yaml")
    monitors = [*chart_monitors(), *engines]
    prepared: list[Scraping] = []

    def configure(folder: Path) -> dict[str, Any]:
        scraping = Scraping(access(kubeconfig_path(), folder), interval, folder, (RULES,))
        prepared.append(scraping)
        write_targets(monitors, scraping)
        return configuration(monitors, scraping)

    def update() -> None:
        with suppress(ClusterError):  # the API server restarts: the last targets stay
            write_targets(monitors, prepared[0])

    with started(prometheus(), configure) as running, meanwhile(update, UPDATE_SECONDS):
        yield running
