"""Calls to the API server: the few verbs and kinds the operator needs, with errors a person can read."""

from __future__ import annotations

import json
import secrets
import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal
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

Manifest = dict[str, Any]

RESOURCES: dict[str, tuple[str, str]] = {
    "ConfigMap": ("v1", "configmaps"),
    "Deployment": ("apps/v1", "deployments"),
    "Event": ("events.k8s.io/v1", "events"),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies"),
    "Pod": ("v1", "pods"),
    "PodDisruptionBudget": ("policy/v1", "poddisruptionbudgets"),
    "PodMonitor": ("monitoring.coreos.com/v1", "podmonitors"),
    "Secret": ("v1", "secrets"),
    "Service": ("v1", "services"),
    KIND: (API_VERSION, PLURAL),
}
"""apiVersion and plural of every kind the operator touches."""

OPTIONAL_KINDS = ("PodMonitor",)
"""Kinds a cluster may not have."""


class KubeApiError(Exception):
    """The API server refused a call, or could not be reached.

    Attributes:
        status: HTTP status; 0 when there was no answer.
        message: what the API server said.
    """

    def __init__(self, action: str, status: int, message: str) -> None:
        super().__init__(f"{action}: {message}" + (f" (HTTP {status})" if status else ""))
        self.status = status
        self.message = message


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
    """The API server. All methods raise KubeApiError when a call fails."""

    def __init__(self, api_client: Any, *, instance: str | None = None, timeout_seconds: float = 30) -> None:
        """
        Args:
            api_client: a `kubernetes.aio.client.ApiClient`, which stays the caller's to close.
            instance: name of this operator in events; the host's name by default.
            timeout_seconds: how long one call may take.
        """
        self._client = api_client
        self._instance = instance or socket.gethostname()
        self._timeout_seconds = timeout_seconds

    async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """The object, or None when there is none."""
        try:
            return await self._call("GET", object_path(kind, namespace, name))
        except KubeApiError as error:
            if error.status == 404:
                return None
            raise

    async def list(self, kind: str, namespace: str | None = None, selector: str | None = None) -> list[Manifest]:
        """The objects of a kind in a namespace, or in all, that match a label selector.

        A list leaves `apiVersion` and `kind` out of its items; they are put back here.
        """
        query = {"labelSelector": selector} if selector else {}
        items = (await self._call("GET", object_path(kind, namespace), query=query))["items"]
        return [{"apiVersion": RESOURCES[kind][0], "kind": kind, **item} for item in items]

    async def apply(self, manifest: Manifest, *, dry_run: bool = False) -> Manifest:
        """Server-side apply; fields others own and that `manifest` names are taken over. Returns the live object."""
        metadata = manifest["metadata"]
        query = {"fieldManager": FIELD_MANAGER, "force": "true", **({"dryRun": "All"} if dry_run else {})}
        path = object_path(manifest["kind"], metadata["namespace"], metadata["name"])
        return await self._call("PATCH", path, query=query, body=manifest, content_type="application/apply-patch+yaml")

    async def delete(self, kind: str, namespace: str, name: str, uid: str | None = None) -> None:
        """Deletes the object and, in the background, what it owns. No error when it is gone already, or when `uid` is
        given and the object has another one by now."""
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

    async def patch_status(self, service: ServiceRecord, status: dict[str, Any]) -> bool:
        """Makes the service's status equal to `status`; returns whether that took a write.

        `status` is compared with the status in `service`, so that a steady state makes no calls.
        """
        patch = status_patch(service.status.to_dict(), status)
        if patch is None:
            return False
        path = object_path(KIND, service.metadata.namespace, service.metadata.name, "status")
        await self._call(
            "PATCH",
            path,
            query={"fieldManager": FIELD_MANAGER},
            body={"status": patch},
            content_type="application/merge-patch+json",
        )
        return True

    async def set_pod_deletion_cost(self, namespace: str, pod: str, cost: int) -> None:
        """Says which pod a scale-down takes first: the one with the lowest cost. A pod that is gone is no error."""
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
        """Records an Event on the service. Call it on a transition, never each time round the loop."""
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
            raise KubeApiError(
                action, response.status, str(answer.get("message") or content[:200].decode(errors="replace"))
            )
        return answer


def _shortened(text: str, most_bytes: int) -> str:
    """The text, cut with an ellipsis where its UTF-8 form is longer than `most_bytes`."""
    encoded = text.encode()
    if len(encoded) <= most_bytes:
        return text
    return encoded[: most_bytes - len("…".encode())].decode(errors="ignore") + "…"


def _json(content: bytes) -> Manifest:
    """The JSON object in an answer; empty when it is something else, as proxies' error pages are."""
    try:
        answer = json.loads(content)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
