"""Access of commands to the cluster: flags, typed reads, and calls with readable errors.

A command receives a `Target` with `cluster_options()` and calls `Target.connect()`:

    @click.command()
    @service_argument
    @cluster_options()
    def why(service: str, target: Target) -> None:
        cluster = target.connect()
        found = cluster.service(service)          # a Service, or a Problem with names that are close
        pods = cluster.pods(found)
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from inflight_base.kube.kinds import object_path
from inflight_base.manifest.names import KIND, pod_labels, selector_string
from inflight_kubectl.access.pods import Pod
from inflight_kubectl.access.resources import Service
from inflight_kubectl.output import Problem

if TYPE_CHECKING:
    from inflight_kubectl.access.connection import Connection

Json = dict[str, Any]

COMPLETION_SECONDS = 2.0
"""Timeout of the API server in seconds: the user is waiting for completion."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target named by the user's flags: nothing is read before `connect`.

    Attributes:
        kubeconfig: path, or None for $KUBECONFIG or ~/.kube/config, and inside a pod for its service account.
        context: context of the kubeconfig; None for its current one.
        namespace: None for the context's own.
        all_namespaces: True if `-A` was given.
    """

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    all_namespaces: bool = False

    def connect(self) -> Cluster:
        """A connection to the cluster, without a call yet.

        Raises:
            Problem: no kubeconfig, one that cannot be read, or no such context.
        """
        from inflight_kubectl.access.kubeconfig import connect

        return Cluster(connect(self.kubeconfig, self.context), self)


class Cluster:
    """A cluster, through its API server. Safe to use from several threads.

    Attributes:
        connection: connection for other calls than those below: `request`, `stream`, `websocket`.
        context: name of the kubeconfig's context; empty inside a pod.
        namespace: namespace that commands use: `-n`, else the context's own, else `default`.
        scope: the namespace to list in; None for all of them.
    """

    def __init__(self, connection: Connection, target: Target) -> None:
        self.connection = connection
        self.context = connection.context
        self.namespace = target.namespace or connection.namespace
        self.scope = None if target.all_namespaces else self.namespace

    def services(self) -> list[Service]:
        """The InferenceServices of `scope`, by namespace and name.

        Raises:
            Problem: no CRD, forbidden, or no answer.
        """
        items = self.list(object_path(KIND, self.scope))["items"]
        return sorted((Service.of(item) for item in items), key=lambda service: service.key)

    def service(self, name: str) -> Service:
        """The InferenceService `name` of `namespace`.

        Raises:
            Problem: not found, with similar names; or no CRD, forbidden, no response.
        """
        found = self.get(object_path(KIND, self.namespace, name))
        if found is not None:
            return Service.of(found)
        names = [item["metadata"]["name"] for item in self.list(object_path(KIND, self.namespace))["items"]]
        raise Problem(f'no InferenceService "{name}" in namespace "{self.namespace}"', _other_names(name, names))

    def pods(self, service: Service) -> list[Pod]:
        """The pods of a service's engines, by name.

        Raises:
            Problem: forbidden, or no answer.
        """
        labels = selector_string(pod_labels(service.name))
        items = self.list(object_path("Pod", service.namespace), labelSelector=labels)["items"]
        return sorted((Pod.of(item) for item in items), key=lambda pod: pod.name)

    def get(self, path: str) -> Json | None:
        """An object; None if it does not exist.

        Raises:
            Problem: any response other than the object.
        """
        from inflight_kubectl.access.api_problems import ApiProblem

        try:
            return self.connection.request("GET", path)
        except ApiProblem as problem:
            if problem.missing_object:
                return None
            raise

    def list(self, path: str, **query: str) -> Json:
        """A list as the API server returns it.

        Raises:
            Problem: any other answer.
        """
        return self.connection.request("GET", path, query=query)

    def create(self, path: str, body: Json) -> Json:
        """POSTs an object to the path of its kind.

        Raises:
            Problem: any other answer than 2xx.
        """
        return self.connection.request("POST", path, body=body)

    def patch(self, path: str, body: Json, content_type: str = "application/merge-patch+json") -> Json:
        """PATCHes an object.

        Raises:
            Problem: any other answer than 2xx.
        """
        return self.connection.request("PATCH", path, body=body, content_type=content_type)


def _other_names(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5) or [one for one in names if one.startswith(name)]
    if close:
        return f"Did you mean {' or '.join(sorted(close[:3]))}?"
    if not names:
        return "The namespace has none: choose another with -n, or list all with `kubectl get ifsvc -A`"
    return f"There {'is' if len(names) == 1 else 'are'} {', '.join(sorted(names)[:8])}{', ...' * (len(names) > 8)}"


def cluster_options(*, all_namespaces: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds -n, --context and --kubeconfig, passed together as `target`.

    Args:
        all_namespaces: True if the command has -A as well.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def decorated(
            *arguments: Any,
            kubeconfig: str | None,
            context: str | None,
            namespace: str | None,
            in_all: bool = False,
            **options: Any,
        ) -> Any:
            return function(*arguments, target=Target(kubeconfig, context, namespace, in_all), **options)

        with_options: Callable[..., Any] = decorated
        for option in (*_OPTIONS, _ALL_NAMESPACES) if all_namespaces else _OPTIONS:
            with_options = option(with_options)
        return with_options

    return decorate


def candidates(kind: str, target: Target, incomplete: str) -> list[str]:
    """Returns the names of `contexts`, `namespaces`, `services` or `keys` that begin with `incomplete`; none
    where the lookup fails."""
    try:
        return [name for name in _names(kind, target) if name.startswith(incomplete)]
    except Problem:
        return []


def _names(kind: str, target: Target) -> list[str]:
    if kind == "contexts":
        from inflight_kubectl.access.kubeconfig import contexts

        return contexts(target.kubeconfig)
    cluster = target.connect()
    if kind == "keys":
        from inflight_kubectl.access.key_store import keys_by_secret

        return [one.key_id for those in keys_by_secret(cluster, cluster.services()).values() for one in those]
    path = "/api/v1/namespaces" if kind == "namespaces" else object_path(KIND, cluster.namespace)
    items = cluster.connection.request("GET", path, seconds=COMPLETION_SECONDS)["items"]
    return sorted(item["metadata"]["name"] for item in items)


def completing(kind: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Completion of an argument or a flag by `candidates`."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        given = context.params
        target = Target(given.get("kubeconfig"), given.get("context"), given.get("namespace"))
        return candidates(kind, target, incomplete)

    return complete


_OPTIONS = (
    click.option("--kubeconfig", metavar="FILE", type=click.Path(), help="Default: $KUBECONFIG, or ~/.kube/config."),
    click.option("--context", metavar="NAME", shell_complete=completing("contexts"), help="Context of the kubeconfig."),
    click.option(
        "-n", "--namespace", metavar="NAME", shell_complete=completing("namespaces"), help="Default: the context's own."
    ),
)
_ALL_NAMESPACES = click.option("-A", "--all-namespaces", "in_all", is_flag=True, help="Look in all namespaces.")

service_argument = click.argument("service", shell_complete=completing("services"))
"""Adds the argument SERVICE, the name of an InferenceService, passed as `service`."""
