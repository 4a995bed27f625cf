"""The operator's view of the gateway: state of its pods, its key, and services that wake."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import aiohttp

from inflight_base.kube.client import KubeApi
from inflight_base.kube.kinds import Selection
from inflight_base.manifest.keys import ServiceKey
from inflight_base.manifest.names import SLICE_OF_LABEL
from inflight_operator.keys import LiveGatewayKey
from inflight_operator.observe.cache import ENDPOINTS
from inflight_operator.observe.gateway import GatewayReader


class LiveGateway(GatewayReader):
    """Run it while this process is the leader.

    Args:
        http: client for state streams.
        service: full DNS name of the gateway's Service.
        held: called with a service when a gateway pod starts to hold requests of it.
        moved: called when the addresses of the gateway's ready pods change.
    """

    def __init__(
        self,
        http: aiohttp.ClientSession,
        api: KubeApi,
        service: str,
        held: Callable[[ServiceKey], Awaitable[None]],
        moved: Callable[[], None],
    ) -> None:
        name, namespace = service.split(".")[:2]

        async def slices() -> Sequence[dict[str, Any]]:
            return await api.list(Selection(ENDPOINTS, namespace, f"{SLICE_OF_LABEL}={name}"))

        super().__init__(http, slices, held, lambda: self._key.current.keys, moved)
        self._key = LiveGatewayKey(api, namespace, f"{name}-key")

    def tenant_keys(self, key: ServiceKey, uid: str) -> tuple[str, ...]:
        """Returns the tenant keys of the service with this uid; `read_key` must have succeeded once."""
        return self._key.current.tenant_keys(key, uid)

    async def read_key(self) -> None:
        """Reads the key, or creates it.

        Raises:
            KubeApiError: the API server refused.
            UnusableKeyError: the Secret cannot be used.
        """
        await self._key.refresh()

    async def run(self) -> None:
        """Follows the gateway's pods and key until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(super().run())
            tasks.create_task(self._key.run())
