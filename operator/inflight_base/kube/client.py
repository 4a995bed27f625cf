"""Calls to the API server: the few verbs and kinds the operator needs, with readable errors."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import quote, urlencode

import aiohttp

from inflight_operator.api.types import API_VERSION, KIND, PLURAL
from inflight_operator.apply.difference import FIELD_MANAGER
from inflight_operator.apply.status import status_patch
from inflight_operator.observe.pods import DELETION_COST

if TYPE_CHECKING:
    from inflight_operator.api.types import ServiceRecord

REPORTING_CONTROLLER = "inflight.dev/operator"
MAX_NOTE = 1024
"""Longest `note` of an Event (events.k8s.io/v1), in bytes."""

PAGE = 200
"""Maximum objects in one page of a list: reading a page blocks the event loop for some tens of milliseconds."""

Manifest = dict[str, Any]

RESOURCES: dict[str, tuple[str, str]] = {
    "ConfigMap": ("v1", "configmaps"),
    "Deployment": ("apps/v1", "deployments"),
    "EndpointSlice": ("discovery.k8s.io/v1", "endpointslices"),
    "Event": ("events.k8s.io/v1", "events"),
    "InferencePool": ("inference.networking.k8s.io/v1", "inferencepools"),
    "Lease": ("coordination.k8s.io/v1", "leases"),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies"),
    "Pod": ("v1", "pods"),
    "PodDisruptionBudget": ("policy/v1", "poddisruptionbudgets"),
    "PodMonitor": ("monitoring.coreos.com/v1", "podmonitors"),
    "Secret": ("v1", "secrets"),
    "Service": ("v1", "services"),
    KIND: (API_VERSION, PLURAL),
}
"""apiVersion and plural of every kind the operator touches."""

OPTIONAL_KINDS = ("PodMonitor", "InferencePool")
"""Kinds a cluster may not have."""


class KubeApiError(Exception):
    """The API server refused a call, or is unreachable.

    Attributes:
        status: HTTP status; 0 without a response.
        message: from the API server.
        retry_after: seconds to wait before the next try, where the API server sends Retry-After (as with 429).
    """

    def __init__(self, action: str, status: int, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{action}: {message}" + (f" (HTTP {status})" if status else ""))
        self.status = status
        self.message = message
        self.retry_after = retry_after


class Page(NamedTuple):
    """A part of a list.

    Attributes:
        first: the list begins or restarts here; earlier pages are discarded.
        version: resourceVersion of the whole list, the same in all its pages.
    """

    first: bool
    version: str
    items: list[Manifest]


def object_path(
    kind: str, namespace: str | None = None, name: str | None = None, subresource: str | None = None
) -> str:
    """URL path of an object, or of all objects of a kind (in one namespace, or in all).

    Raises:
        KeyError: the operator does not know `kind`.
    """
    api_version, plural = RESOURCES[kind]
    parts = ["api" if "/" not in api_version else "apis", *api_version.split("/")]
    if namespace is not None:
        parts += ["namespaces", namespace]
    parts += [part for part in (plural, name, subresource) if part is not None]
    return "/" + "/".join(quote(part, safe="") for part in parts)


class KubeApi:
    """The API server. All methods raise KubeApiError when a call fails.

    Attributes:
        kind_missing: set when the API server no longer knew an optional kind that was to be written.
    """

    def __init__(
        self,
        api_client: Any,
        *,
        instance: str | None = None,
        timeout_seconds: float = 30,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        Args:
            api_client: a `kubernetes.aio.client.ApiClient`, which the caller closes.
            instance: name of this operator in events; the host's name by default.
            timeout_seconds: how long one call may take.
            may_write: called before each write; if false, the write fails without a call.
        """
        self._client = api_client
        self._instance = instance or socket.gethostname()
        self._timeout_seconds = timeout_seconds
        self._may_write = may_write
        self.kind_missing = asyncio.Event()

    async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """The object, or None when there is none."""
        try:
            return await self._call("GET", object_path(kind, namespace, name))
        except KubeApiError as error:
            if error.status == 404:
                return None
            raise

    async def list(self, kind: str, namespace: str | None = None, selector: str | None = None) -> list[Manifest]:
        """The objects of a kind in a namespace, or in all, that match a label selector."""
        items: list[Manifest] = []
        async for page in self.pages(kind, namespace, selector):
            items = page.items if page.first else items + page.items
        return items

    async def pages(self, kind: str, namespace: str | None = None, selector: str | None = None) -> AsyncIterator[Page]:
        """The same, `PAGE` objects at a time. A list that expires (410) is restarted.

        A list leaves `apiVersion` and `kind` out of its items; they are put back here.
        """
        query = {"limit": str(PAGE), **({"labelSelector": selector} if selector else {})}
        following = ""
        while True:
            try:
                answer = await self._call(
                    "GET",
                    object_path(kind, namespace),
                    query={**query, **({"continue": following} if following else {})},
                )
            except KubeApiError as error:
                if error.status != 410 or not following:
                    raise
                following = ""
                continue
            items = [{"apiVersion": RESOURCES[kind][0], "kind": kind, **item} for item in answer["items"]]
            yield Page(not following, answer["metadata"].get("resourceVersion", ""), items)
            following = answer["metadata"].get("continue", "")
            if not following:
                return

    async def apply(self, manifest: Manifest, *, dry_run: bool = False, force: bool = True) -> Manifest:
        """Server-side apply. Returns the live object.

        Args:
            force: take over fields that others own and that `manifest` names, rather than fail with 409.
        """
        kind, metadata = manifest["kind"], manifest["metadata"]
        query = {"fieldManager": FIELD_MANAGER, "force": str(force).lower(), **({"dryRun": "All"} if dry_run else {})}
        path = object_path(kind, metadata["namespace"], metadata["name"])
        try:
            return await self._call(
                "PATCH", path, query=query, body=manifest, content_type="application/apply-patch+yaml"
            )
        except KubeApiError as error:
            if error.status == 404 and kind in OPTIONAL_KINDS:
                self.kind_missing.set()
            raise

    async def create(self, manifest: Manifest) -> Manifest:
        """Creates an object and returns it as stored; an error with status 409 if the name exists."""
        return await self._call("POST", object_path(manifest["kind"], manifest["metadata"]["namespace"]), body=manifest)

    async def replace(self, manifest: Manifest) -> Manifest:
        """Puts `manifest` in place of the object it was made from; an error with status 409 when that has changed since
        (`metadata.resourceVersion`). Returns it as stored."""
        metadata = manifest["metadata"]
        path = object_path(manifest["kind"], metadata["namespace"], metadata["name"])
        return await self._call("PUT", path, body=manifest)

    async def get_or_create(self, manifest: Manifest) -> Manifest:
        """The object of this name, made from `manifest` where there is none. Concurrent callers get the same object."""
        kind, namespace, name = manifest["kind"], manifest["metadata"]["namespace"], manifest["metadata"]["name"]
        live = await self.get(kind, namespace, name)
        if live is not None:
            return live
        try:
            return await self.create(manifest)
        except KubeApiError as error:
            if error.status != 409:
                raise
        return await self._call("GET", object_path(kind, namespace, name))

    async def delete(self, kind: str, namespace: str, name: str, uid: str | None = None) -> None:
        """Deletes the object and, in the background, what it owns. No error if the object is already deleted, or if
        `uid` is given and the object has another uid."""
        options: Manifest = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        gone = {404}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
            gone.add(409)
        try:
            await self._call("DELETE", object_path(kind, namespace, name), body=options)
        except KubeApiError as error:
            if error.status not in gone:
                raise

    async def patch_status(self, service: ServiceRecord, status: dict[str, Any]) -> Manifest | None:
        """Makes the service's status equal to `status`; returns the live service, or None where no write was needed.

        `status` is compared with the status in `service`, so that a steady state makes no calls.
        """
        patch = status_patch(service.status.to_dict(), status)
        if patch is None:
            return None
        path = object_path(KIND, service.metadata.namespace, service.metadata.name, "status")
        return await self._call(
            "PATCH",
            path,
            query={"fieldManager": FIELD_MANAGER},
            body={"status": patch},
            content_type="application/merge-patch+json",
        )

    async def set_replicas(self, namespace: str, name: str, replicas: int) -> Manifest:
        """Sets only the replicas of a Deployment. Returns the live object."""
        return await self._call(
            "PATCH",
            object_path("Deployment", namespace, name),
            query={"fieldManager": FIELD_MANAGER},
            body={"spec": {"replicas": replicas}},
            content_type="application/merge-patch+json",
        )

    async def set_pod_deletion_cost(self, namespace: str, pod: str, cost: int) -> None:
        """Sets the pod deletion cost: a scale-down deletes the pod with the lowest cost first. A deleted pod is no
        error."""
        body = {"metadata": {"annotations": {DELETION_COST: str(cost)}}}
        try:
            await self._call(
                "PATCH",
                object_path("Pod", namespace, pod),
                query={"fieldManager": FIELD_MANAGER},
                body=body,
                content_type="application/merge-patch+json",
            )
        except KubeApiError as error:
            if error.status != 404:
                raise

    async def event(
        self, service: ServiceRecord, type: Literal["Normal", "Warning"], reason: str, message: str
    ) -> None:
        """Records an Event on the service. Call it on a transition, not in every round."""
        metadata = service.metadata
        body = {
            "apiVersion": RESOURCES["Event"][0],
            "kind": "Event",
            "metadata": {"name": f"{metadata.name}.{secrets.token_hex(8)}", "namespace": metadata.namespace},
            "eventTime": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "reportingController": REPORTING_CONTROLLER,
            "reportingInstance": self._instance[:128],
            "action": "Reconcile",
            "type": type,
            "reason": reason,
            "note": _shortened(message, MAX_NOTE),
            "regarding": {
                "apiVersion": service.api_version,
                "kind": service.kind,
                "name": metadata.name,
                "namespace": metadata.namespace,
                "uid": metadata.uid,
            },
        }
        await self._call("POST", object_path("Event", metadata.namespace), body=body)

    async def available_apis(self) -> frozenset[str]:
        """Which optional APIs the cluster has, as `GROUP/VERSION/KIND`, for `render.Settings`."""
        found = set()
        for group_version in sorted({RESOURCES[kind][0] for kind in OPTIONAL_KINDS}):
            try:
                resources = (await self._call("GET", f"/apis/{group_version}"))["resources"]
            except KubeApiError as error:
                if error.status != 404:
                    raise
                continue
            found |= {f"{group_version}/{resource['kind']}" for resource in resources if "/" not in resource["name"]}
        return frozenset(found)

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: Manifest | None = None,
        content_type: str = "application/json",
    ) -> Manifest:
        action = f"{method} {path}"
        if method != "GET" and not self._may_write():
            raise KubeApiError(action, 0, "not sent: this process no longer leads")
        request = await self._client.param_serialize(
            method,
            path + (f"?{urlencode(query)}" if query else ""),
            header_params={"Accept": "application/json", "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            response = await self._client.call_api(*request, _request_timeout=self._timeout_seconds)
            content = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise KubeApiError(
                action, 0, f"the API server does not answer: {str(error) or type(error).__name__}"
            ) from error
        answer = _json(content)
        if not 200 <= response.status < 300:
            message = str((answer or {}).get("message") or content[:200].decode(errors="replace"))
            raise KubeApiError(action, response.status, message, _seconds(response.getheader("Retry-After", "")))
        if answer is None:
            raise KubeApiError(action, response.status, "the answer is no JSON object: is a proxy in the way?")
        return answer


def _shortened(text: str, most_bytes: int) -> str:
    """The text, cut with an ellipsis where its UTF-8 form is longer than `most_bytes`."""
    encoded = text.encode()
    if len(encoded) <= most_bytes:
        return text
    return encoded[: most_bytes - len("…".encode())].decode(errors="ignore") + "…"


def _seconds(retry_after: str) -> float | None:
    """The API server sends whole seconds; the date form of the header is not parsed."""
    return float(retry_after) if retry_after.isascii() and retry_after.isdigit() else None


def _json(content: bytes) -> Manifest | None:
    """The JSON object in an answer; None for any other content, such as error pages of proxies."""
    try:
        answer = json.loads(content)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None
