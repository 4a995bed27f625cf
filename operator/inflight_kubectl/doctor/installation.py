"""Cluster, CustomResourceDefinition, operator and its leader."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.metadata import version as package_version
from typing import Any

from inflight_base.kube.kinds import object_path
from inflight_base.manifest.names import GROUP, KIND, PLURAL
from inflight_kubectl.access.api_problems import ApiProblem
from inflight_kubectl.access.cluster import Cluster, Json
from inflight_kubectl.access.operators import OPERATOR_SELECTOR, lease_path, operators, upgrade_command
from inflight_kubectl.access.pods import moment
from inflight_kubectl.doctor.result import Result, fail, ok, warn

LEAST_MINOR = 30
"""Minimum minor version of Kubernetes: the resource's validation needs optionalOldSelf."""

INSTALL = "helm install inflight helm/inflight -n inflight-system --create-namespace"

_STATUS_FIELDS = frozenset({"blockedReplicas", "conditions", "decisions", "demand", "limits", "observed"})
"""Fields of the status that the commands read."""

_RESTARTED_LATELY = timedelta(hours=1)


def check_cluster(cluster: Cluster) -> Iterator[Result]:
    """Checks that the cluster is reachable, and new enough."""
    found = cluster.list("/version")
    name = found.get("gitVersion", "?")
    where = f"{cluster.connection.host} runs Kubernetes {name}"
    if is_older(found, LEAST_MINOR):
        yield fail("cluster", where, f"upgrade the cluster to Kubernetes 1.{LEAST_MINOR} or newer")
    else:
        yield ok("cluster", where)


def is_older(found: Json, minor: int) -> bool:
    """Returns True if the version that an API server gives is older than 1.`minor`."""
    served = int(re.sub(r"\D.*", "", str(found.get("minor", "0"))) or 0)
    return int(found.get("major", 1) or 1) == 1 and served < minor


def check_crd(cluster: Cluster) -> Iterator[Result]:
    """Checks that the resource is served and has the fields that the commands read."""
    try:
        crd = cluster.get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{PLURAL}.{GROUP}")
    except ApiProblem as problem:
        if problem.status != 403:
            raise
        cluster.list(object_path(KIND, cluster.namespace), limit="1")
        yield ok("crd", f"InferenceServices are served ({GROUP}/v1alpha1); you may not read the definition itself")
        return
    if crd is None:
        yield fail("crd", f"the CustomResourceDefinition {PLURAL}.{GROUP} is not installed", INSTALL)
        return
    versions = {one["name"]: one for one in crd["spec"]["versions"] if one.get("served")}
    upgrade = "kubectl apply --server-side --force-conflicts -f crds/inflight.dev_inferenceservices.yaml"
    if "v1alpha1" not in versions:
        yield fail("crd", f"version v1alpha1 is not served, but {', '.join(versions) or 'none'}", upgrade)
        return
    schema = versions["v1alpha1"].get("schema", {}).get("openAPIV3Schema", {})
    fields = schema.get("properties", {}).get("status", {}).get("properties", {})
    missing = sorted(_STATUS_FIELDS - fields.keys())
    if missing:
        found = f"the CustomResourceDefinition is older than this program: it has no status.{', status.'.join(missing)}"
        yield warn("crd", found, upgrade)
    else:
        yield ok("crd", f"{PLURAL}.{GROUP} v1alpha1 is installed and has all fields")


def check_operator(cluster: Cluster) -> Iterator[Result]:
    """Checks for a Deployment with ready pods that do not restart, a version like this program's, and a leader."""
    found = operators(cluster)
    if not found:
        yield fail("operator", "the operator is not installed", INSTALL)
        return
    for deployment in found:
        yield _running(deployment)
        yield from _pods(cluster, deployment)
        yield from _leader(cluster, deployment)


def _running(deployment: Json) -> Result:
    namespace, name = deployment["metadata"]["namespace"], deployment["metadata"]["name"]
    wanted, available = deployment["spec"].get("replicas", 1), deployment.get("status", {}).get("availableReplicas", 0)
    installed = (deployment["metadata"].get("labels") or {}).get("app.kubernetes.io/version", "?")
    what = f"{namespace}/{name} {installed}"
    if not wanted:
        return fail(
            "operator", f"{what} is scaled to 0", f"kubectl -n {namespace} scale deployment {name} --replicas=1"
        )
    if not available:
        return fail(
            "operator", f"{what} has no ready pod", f"kubectl -n {namespace} describe pods -l {OPERATOR_SELECTOR}"
        )
    if available < wanted:
        found = f"{what}: {available} of {wanted} pods are ready"
        return warn("operator", found, f"kubectl -n {namespace} describe pods -l {OPERATOR_SELECTOR}")
    mine = package_version("inflight")
    if installed not in ("?", mine):
        found = f"{what} runs, and this program is of version {mine}"
        return warn("operator", found, _same_version(deployment, installed, mine))
    return ok("operator", f"{what}: {available} of {wanted} pods are ready")


def _pods(cluster: Cluster, deployment: Json) -> Iterator[Result]:
    namespace = deployment["metadata"]["namespace"]
    pods = cluster.list(object_path("Pod", namespace), labelSelector=OPERATOR_SELECTOR)["items"]
    for pod in pods:
        for container in pod.get("status", {}).get("containerStatuses", []):
            ended: dict[str, Any] = container.get("lastState", {}).get("terminated") or {}
            at = moment(ended.get("finishedAt"))
            if at is None or datetime.now(UTC) - at > _RESTARTED_LATELY:
                continue
            name = pod["metadata"]["name"]
            found = f"{name} restarted {container['restartCount']} times, last {ended.get('reason', 'Error')}"
            yield warn("operator restarts", found, f"kubectl -n {namespace} logs {name} --previous")


def _same_version(deployment: Json, installed: str, mine: str) -> str:
    """Returns the command that upgrades the older one of operator and program."""
    if _numbers(mine) < _numbers(installed):
        return f"git checkout v{installed} && pip install '.[kubectl]'"
    return upgrade_command(deployment)


def _numbers(version: str) -> list[int]:
    return [int(one) for one in re.findall(r"\d+", version)]


def _leader(cluster: Cluster, deployment: Json) -> Iterator[Result]:
    namespace, path = deployment["metadata"]["namespace"], lease_path(deployment)
    if path is None:
        yield ok("leader", "leader election is off: the one pod acts")
        return
    lease, name = cluster.get(path), path.rpartition("/")[2]
    logs = f"kubectl -n {namespace} logs deploy/{deployment['metadata']['name']}"
    spec = (lease or {}).get("spec") or {}
    holder, renewed = spec.get("holderIdentity"), moment(spec.get("renewTime"))
    if not holder or renewed is None:
        yield fail("leader", f"nobody holds the Lease {namespace}/{name}: no operator acts", logs)
        return
    since = (datetime.now(UTC) - renewed).total_seconds()
    # Clocks of this machine and the leader may differ, but not by twice the duration of the Lease.
    if since > 2 * spec.get("leaseDurationSeconds", 15):
        yield fail("leader", f"{holder} has not renewed the Lease {namespace}/{name} for {since:.0f} s", logs)
    else:
        yield ok("leader", f"{holder} leads")
