"""All checks, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from inflight_kubectl.access.api_problems import ApiProblem, UnreachableProblem
from inflight_kubectl.access.cluster import Cluster
from inflight_kubectl.doctor.engines import check_engines
from inflight_kubectl.doctor.gateway import check_gateway
from inflight_kubectl.doctor.installation import check_cluster, check_crd, check_operator
from inflight_kubectl.doctor.monitoring import check_monitoring
from inflight_kubectl.doctor.permissions import check_caller, check_operator_rights
from inflight_kubectl.doctor.result import Result, fail, warn
from inflight_kubectl.doctor.workloads import check_accelerators, check_images, check_storage
from inflight_kubectl.output import Problem

CHECKS: tuple[tuple[str, Callable[[Cluster], Iterator[Result]]], ...] = (
    ("cluster", check_cluster),
    ("crd", check_crd),
    ("operator", check_operator),
    ("your rights", check_caller),
    ("operator's rights", check_operator_rights),
    ("engines", check_engines),
    ("gateway", check_gateway),
    ("prometheus", check_monitoring),
    ("accelerators", check_accelerators),
    ("images", check_images),
    ("storage", check_storage),
)


def examine(cluster: Cluster) -> Iterator[Result]:
    """The results as they complete. A check without permission, or without its API, is a warning; without an API server
    no other check runs."""
    for name, check in CHECKS:
        try:
            yield from check(cluster)
        except UnreachableProblem as problem:
            yield fail(name, problem.what, problem.remedy)
            return
        except ApiProblem as problem:
            yield warn(name, f"not checked: {problem.what}", problem.remedy)
        except Problem as problem:
            yield fail(name, problem.what, problem.remedy)
