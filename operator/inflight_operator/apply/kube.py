"""Calls of the operator to the API server: the calls of the base, and writes about a service."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from inflight_base.kube.client import KubeApi
from inflight_base.kube.errors import KubeApiError
from inflight_base.kube.kinds import RESOURCES
from inflight_base.manifest import Manifest
from inflight_base.manifest.names import FIELD_MANAGER, KIND
from inflight_operator.api.types import ServiceRecord

REPORTING_CONTROLLER = "inflight.dev/operator"
MAX_NOTE = 1024
"""Longest `note` of an Event (events.k8s.io/v1), in bytes."""


class OperatorApi(KubeApi):
    """The API server. All methods raise KubeApiError when a call fails."""

    def __init__(self, api_client: Any, may_write: Callable[[], bool] = lambda: True) -> None:
        """See `KubeApi`."""
        super().__init__(api_client, field_manager=FIELD_MANAGER, may_write=may_write)

    async def patch_status(self, service: ServiceRecord, status: dict[str, Any]) -> Manifest | None:
        """Makes the service's status equal to `status`; returns the live service, or None where no write was needed.

        `status` is compared with the status in `service`, so that a steady state makes no calls. Another service of the
        same name, which was created since, refuses it: an error with status 422. (A merge patch with a uid would not
        be refused: the API server drops metadata from patches of a status.)
        """
        if service.status.to_dict() == status:
            return None
        metadata = service.metadata
        operations: Sequence[Manifest] = [
            {"op": "test", "path": "/metadata/uid", "value": metadata.uid},
            {"op": "add", "path": "/status", "value": status},
        ]
        return await self.json_patch(KIND, metadata.namespace, metadata.name, operations, subresource="status")

    async def set_in_deployment(self, namespace: str, name: str, fields: Manifest) -> Manifest:
        """Sets only these fields of a Deployment's spec. Returns the live object."""
        return await self.patch("Deployment", namespace, name, {"spec": fields})

    async def annotate_pod(self, namespace: str, pod: str, name: str, value: str) -> None:
        """Sets an annotation. A deleted pod is no error."""
        try:
            await self.patch("Pod", namespace, pod, {"metadata": {"annotations": {name: value}}})
        except KubeApiError as error:
            if error.status != 404:
                raise

    async def event(
        self, service: ServiceRecord, type: Literal["Normal", "Warning"], reason: str, message: str
    ) -> None:
        """Records an Event on the service. Call it on a transition, not in every round."""
        metadata = service.metadata
        await self.create(
            {
                "apiVersion": RESOURCES["Event"][0],
                "kind": "Event",
                "metadata": {"name": f"{metadata.name}.{secrets.token_hex(8)}", "namespace": metadata.namespace},
                "eventTime": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
                "reportingController": REPORTING_CONTROLLER,
                "reportingInstance": socket.gethostname()[:128],
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
        )


def _shortened(text: str, most_bytes: int) -> str:
    """Returns the text, shortened with an ellipsis if its UTF-8 form is longer than `most_bytes`."""
    encoded = text.encode()
    if len(encoded) <= most_bytes:
        return text
    return encoded[: most_bytes - len("…".encode())].decode(errors="ignore") + "…"
