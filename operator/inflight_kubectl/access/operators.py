"""The operators of a cluster: their Deployments, the leader, and the command that changes the installation."""

from __future__ import annotations

from inflight_base.kube.kinds import object_path
from inflight_base.manifest.names import OPERATOR_LABELS, selector_string
from inflight_kubectl.access.api_problems import ApiProblem
from inflight_kubectl.access.cluster import Cluster, Json

OPERATOR_SELECTOR = selector_string(OPERATOR_LABELS)


def operators(cluster: Cluster) -> list[Json]:
    """Returns the Deployments of operators in this cluster.

    Raises:
        Problem: forbidden, or no answer.
    """
    return list(cluster.list(object_path("Deployment"), labelSelector=OPERATOR_SELECTOR)["items"])


def arguments(deployment: Json) -> list[str]:
    """Returns the arguments of the operator's container."""
    return list(deployment["spec"]["template"]["spec"]["containers"][0].get("args") or [])


def lease_path(deployment: Json) -> str | None:
    """Returns the path of the Lease that the leader holds; None if leader election is disabled, which takes a flag."""
    given = arguments(deployment)
    elects = [one for one in given if one in ("--leader-elect", "--no-leader-elect")]
    if elects[-1:] == ["--no-leader-elect"]:
        return None
    name = next((one.partition("=")[2] for one in given if one.startswith("--lease-name=")), "inflight-operator")
    return object_path("Lease", deployment["metadata"]["namespace"], name)


def upgrade_of_operator(cluster: Cluster, *options: str) -> str:
    """Returns `upgrade_command` for the operator of this cluster; that of the documentation's installation if you may
    not look for it."""
    try:
        found = operators(cluster)
    except ApiProblem:
        found = []
    return upgrade_command(found[0] if found else {"metadata": {"namespace": "inflight-system"}}, *options)


def upgrade_command(installed: Json, *options: str) -> str:
    """Returns the helm command that changes an installation and keeps its other values, also across versions of the
    chart.

    Args:
        installed: the operator's Deployment, or one of its pods.
    """
    metadata = installed["metadata"]
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    release = annotations.get("meta.helm.sh/release-name") or labels.get("app.kubernetes.io/instance") or "inflight"
    namespace = annotations.get("meta.helm.sh/release-namespace") or metadata["namespace"]
    return " ".join((f"helm upgrade {release} helm/inflight -n {namespace} --reset-then-reuse-values", *options))
