"""helm, from the Python environment that runs this or from PATH."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from inflight_base.manifest import Manifest
from tools.localcluster import kubeconfig_path
from tools.localcluster.commands import installed, output
from tools.localcluster.layout import REPOSITORY
from tools.localcluster.programs.kubectl_program import environment

CHART = REPOSITORY / "helm" / "inflight"
RELEASE = "inflight"
OPERATOR_NAMESPACE = "inflight-system"


def binary() -> str:
    """Path of helm. Raises ClusterError where there is none."""
    return installed("helm")


def helm(*arguments: str) -> str:
    """Output of helm against the cluster.

    Raises:
        ClusterError: it failed; the message has its complaint.
    """
    return _run(arguments, environment(kubeconfig_path()))


def rendered(*flags: str, chart: Path = CHART) -> list[Manifest]:
    """The objects of the chart, hooks included, for the release in the operator's namespace. Needs no cluster.

    Args:
        flags: further flags of `helm template`, such as `--set replicas=2`.
        chart: its folder or archive.

    Raises:
        ClusterError: Helm is missing, or rejected the values; the message has its complaint.
    """
    text = _run(("template", RELEASE, str(chart), "--namespace", OPERATOR_NAMESPACE, *flags))
    return [one for one in yaml.load_all(text, yaml.CSafeLoader) if one]  # ten times as fast


def _run(arguments: tuple[str, ...], environment: Mapping[str, str] | None = None) -> str:
    return output([binary(), *arguments], f"`helm {' '.join(arguments)}` failed: {{complaint}}", env=environment)
