"""Leader election on a Lease: only the leader acts, the others watch and wait.

`kubernetes.aio.leaderelection` does the election. Two things are added to its lock. It lets connection errors through,
which would end a process that only waits; here they count as a failed try. And it never gives the Lease back; here a
process that ends does, so that the next one need not wait until the Lease runs out.
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import Any

from kubernetes.aio.client import V1Lease, V1ObjectMeta
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.leaderelection.electionconfig import Config
from kubernetes.aio.leaderelection.leaderelection import LeaderElection
from kubernetes.aio.leaderelection.resourcelock.leaselock import LeaseLock

logger = logging.getLogger(__name__)

LEASE_NAME = "inflight-operator"
LEASE_SECONDS = 15
RENEW_DEADLINE_SECONDS = 10
RETRY_SECONDS = 2.0
"""client-go's defaults for its own leader election."""

CALL_SECONDS = 4.0
"""One call to the API server; well below the renew deadline, so that a call that hangs is tried again."""


class SteadyLease(LeaseLock):  # type: ignore[misc]
    """A Lease whose calls end in time, fail softly, and that can be given back."""

    renewed: float | None = None
    """When this process last wrote itself into the Lease, on the steady clock; None before it ever did."""

    def _patience(self) -> asyncio.Timeout:
        """For one call: a holder's last try ends by its renew deadline, while the Lease is still its own."""
        if self.renewed is None:
            return asyncio.timeout(CALL_SECONDS)
        left = self.renewed + RENEW_DEADLINE_SECONDS - monotonic()
        return asyncio.timeout(max(0.1, min(CALL_SECONDS, left)))

    async def get(self, name: str, namespace: str) -> tuple[bool, Any]:
        try:
            async with self._patience():
                answer: tuple[bool, Any] = await super().get(name, namespace)
                return answer
        except (OSError, TimeoutError) as error:
            return False, ApiException(status=0, reason=f"no answer: {error or type(error).__name__}")

    async def create(self, name: str, namespace: str, election_record: Any) -> bool:
        """As the library's, which fails on a `pretty=True` that its own client (37.0.2) does not accept."""
        body = V1Lease(metadata=V1ObjectMeta(name=name), spec=self.update_lease(election_record))
        asked = monotonic()
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await self.api_instance.create_namespaced_lease(namespace, body)
        except (ApiException, OSError, TimeoutError) as error:
            logger.warning("cannot create Lease %s/%s: %s", namespace, name, error or type(error).__name__)
            return False
        self.renewed = asked
        return True

    async def update(self, name: str, namespace: str, updated_record: Any) -> bool:
        asked = monotonic()
        try:
            async with self._patience():
                written = bool(await super().update(name, namespace, updated_record))
        except (OSError, TimeoutError) as error:
            logger.warning("cannot renew Lease %s/%s: %s", namespace, name, error or type(error).__name__)
            return False
        if written:
            self.renewed = asked
        return written

    async def release(self) -> None:
        """Gives the Lease back if it is ours. A failure is only told: the Lease then runs out by itself."""
        held, _ = await self.get(self.name, self.namespace)
        lease = self.lease_reference
        if not held or lease is None or lease.spec is None or lease.spec.holder_identity != self.identity:
            return
        lease.spec.holder_identity = None
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await self.api_instance.replace_namespaced_lease(self.name, self.namespace, lease)
        except (ApiException, OSError, TimeoutError) as error:
            logger.warning("cannot give Lease %s/%s back: %s", self.namespace, self.name, error)


class Leadership:
    """Waits for the Lease and keeps it.

    Args:
        api_client: a `kubernetes.aio.client.ApiClient`.
        namespace: of the Lease.
        identity: of this process, unique among the operator's pods.
        name: of the Lease; operators that look after different services in one cluster need different ones.
    """

    def __init__(self, api_client: Any, namespace: str, identity: str, name: str = LEASE_NAME) -> None:
        self._lease = SteadyLease(name, namespace, identity, api_client)
        self._acquired = asyncio.Event()

    async def acquired(self) -> None:
        """Returns once this process is the leader."""
        await self._acquired.wait()

    async def hold(self) -> None:
        """Takes part in the election; returns when the Lease was held and lost. On cancellation it is given back."""
        election = LeaderElection(
            Config(
                self._lease,
                lease_duration=LEASE_SECONDS,
                renew_deadline=RENEW_DEADLINE_SECONDS,
                retry_period=RETRY_SECONDS,
                onstarted_leading=self._started,
                onstopped_leading=self._stopped,
            )
        )
        try:
            await election.run()
        finally:
            if self._acquired.is_set():
                await asyncio.shield(self._lease.release())

    async def _started(self) -> None:
        logger.info("leading as %s", self._lease.identity)
        self._acquired.set()

    async def _stopped(self) -> None:
        logger.error("lost Lease %s/%s: this process ends", self._lease.namespace, self._lease.name)
