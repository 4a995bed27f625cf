"""Permissions of the caller and the operator, as reported by the API server."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from inflight_base.manifest.names import GROUP
from inflight_kubectl.access.api_keys import keys_secret
from inflight_kubectl.access.api_problems import ApiProblem
from inflight_kubectl.access.cluster import Cluster, Json
from inflight_kubectl.access.operators import arguments, operators, upgrade_command
from inflight_kubectl.doctor.result import Result, fail, ok, warn

Access = tuple[str, str, str]
"""Verb, API group, and resource, with its subresource after a slash."""

READING: tuple[Access, ...] = (
    ("get", GROUP, "inferenceservices"),
    ("list", GROUP, "inferenceservices"),
    ("watch", GROUP, "inferenceservices"),
    ("list", "", "pods"),
    ("list", "", "events"),
)
"""Permissions for `top` and `why`; the cluster's role `view` has them."""

REACHING: tuple[Access, ...] = (("get", "", "pods/portforward"), ("create", "", "pods/portforward"))
"""Permissions for figures of pods, and for all commands that talk to engines; the role `edit` has them."""

CHANGING: tuple[Access, ...] = (("patch", GROUP, "inferenceservices"),)
"""Permissions for limits set by hand; the role `edit` has them."""

KEEPING: tuple[Access, ...] = (("get", "", "secrets"), ("create", "", "secrets"), ("patch", "", "secrets"))
"""Permissions for API keys; the role `edit` has them."""

OPERATING: tuple[Access, ...] = (
    ("list", GROUP, "inferenceservices"),
    ("watch", GROUP, "inferenceservices"),
    ("create", GROUP, "inferenceservices"),
    ("patch", GROUP, "inferenceservices"),
    ("delete", GROUP, "inferenceservices"),
    ("patch", GROUP, "inferenceservices/status"),
    ("update", GROUP, "inferenceservices/finalizers"),
    ("list", "", "pods"),
    ("patch", "", "pods"),
    ("create", "", "services"),
    ("patch", "", "services"),
    ("patch", "", "configmaps"),
    ("create", "", "secrets"),
    ("patch", "", "secrets"),
    ("create", "apps", "deployments"),
    ("patch", "apps", "deployments"),
    ("create", "batch", "jobs"),
    ("patch", "batch", "jobs"),
    ("patch", "policy", "poddisruptionbudgets"),
    ("patch", "networking.k8s.io", "networkpolicies"),
    ("list", "discovery.k8s.io", "endpointslices"),
    ("create", "events.k8s.io", "events"),
)
"""Permissions that the operator requires."""


def check_caller(cluster: Cluster) -> Iterator[Result]:
    """Checks the permissions that the commands need, in the checked namespace."""
    where = f"namespace {cluster.scope}" if cluster.scope is not None else "all namespaces"
    for name, needed, role, worse in (
        ("your reading rights", READING, "view", fail),
        ("your port-forward rights", REACHING, "edit", warn),
        ("your rights to set limits", CHANGING, "edit", warn),
        *((("your rights to manage API keys", KEEPING, "edit", warn),) if _keyed(cluster) else ()),
    ):
        refused = [access for access, may in _ask(cluster, needed, cluster.scope, None) if not may]
        if not refused:
            yield ok(name, f"you may use all that is needed in {where}")
            continue
        yield worse(name, f"in {where} you may not {_words(refused)}", _grant(cluster, role))


def _keyed(cluster: Cluster) -> bool:
    """Returns True if a service names a Secret with API keys; False if listing services is forbidden, which is a
    finding of its own."""
    try:
        return any(keys_secret(service) for service in cluster.services())
    except ApiProblem:
        return False


def check_operator_rights(cluster: Cluster) -> Iterator[Result]:
    """Checks the permissions that the operator needs in its namespaces."""
    for deployment in operators(cluster):
        given = arguments(deployment)
        named: list[str | None] = [one.partition("=")[2] for one in given if one.startswith("--namespace=")]
        namespace = deployment["metadata"]["namespace"]
        account = deployment["spec"]["template"]["spec"].get("serviceAccountName", "default")
        user = f"system:serviceaccount:{namespace}:{account}"
        try:
            refused = [a for where in named or [None] for a, may in _ask(cluster, OPERATING, where, user) if not may]
        except ApiProblem as problem:
            if problem.status != 403:
                raise
            yield warn("operator's rights", "not checked: you may not ask what others may do (SubjectAccessReview)")
            return
        if refused:
            found = f"{user} may not {_words(sorted(set(refused)))}"
            yield fail("operator's rights", found, upgrade_command(deployment, "--set rbac.create=true"))
        else:
            yield ok("operator's rights", f"{user} may do all that it needs")


def _ask(
    cluster: Cluster, needed: tuple[Access, ...], namespace: str | None, user: str | None
) -> list[tuple[Access, bool]]:
    kind = "SelfSubjectAccessReview" if user is None else "SubjectAccessReview"
    path = f"/apis/authorization.k8s.io/v1/{kind.lower()}s"

    def may(access: Access) -> tuple[Access, bool]:
        verb, group, resource = access
        resource, _, subresource = resource.partition("/")
        attributes: Json = {"verb": verb, "group": group, "resource": resource, "namespace": namespace or ""}
        if subresource:
            attributes["subresource"] = subresource
        spec: Json = {"resourceAttributes": attributes} | ({"user": user, "groups": _groups(user)} if user else {})
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
        return access, bool(cluster.create(path, body)["status"].get("allowed"))

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(may, needed))


def _groups(user: str) -> list[str]:
    """Returns the groups that the API server assigns to a service account."""
    namespace = user.split(":")[2]
    return ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]


def _words(refused: list[Access]) -> str:
    return ", ".join(f"{verb} {resource}{'.' + group if group else ''}" for verb, group, resource in refused)


def _grant(cluster: Cluster, role: str) -> str:
    """Returns the command with which an administrator grants the missing permissions to the caller."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = cluster.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", body)
    user = answer["status"]["userInfo"].get("username", "USER")
    parts = user.split(":")
    whom = f"--serviceaccount={parts[2]}:{parts[3]}" if user.startswith("system:serviceaccount:") else f"--user={user}"
    name = f"inflight-{role}-{parts[-1]}".lower().replace("@", "-at-")
    if cluster.scope is None:
        return f"kubectl create clusterrolebinding {name} --clusterrole={role} {whom}"
    return f"kubectl -n {cluster.scope} create rolebinding {name} --clusterrole={role} {whom}"
