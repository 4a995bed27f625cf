"""Leader election on a Lease: only the leader acts, other processes watch and wait.

The algorithm and its defaults are client-go's. `kubernetes.aio.leaderelection` is not used: it measures with the wall
clock (a step of that clock lets a standby take a Lease which is still held), retries beyond the renew deadline, ends a
waiting process on a connection error, and never releases a Lease.

Two processes never act at once:
- The leader stops `RENEW_DEADLINE_SECONDS` after it sent its last successful renewal. A standby takes the Lease
  `LEASE_SECONDS` after it saw that renewal. The difference is the time the leader has to stop.
- `Leadership.leads` guards each write (`KubeApi(may_write=...)`): a process that does not hold the Lease sends nothing
  more, even before it stops.
- The Lease is released only after the action was cancelled and has ended.

The election has an event loop of its own, so that a leader whose loop is busy with a burst of changes keeps its Lease.
It renews only while the process is healthy: a loop that hangs loses the Lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from inflight_base.kube.client import KubeApi
from inflight_base.kube.errors import KubeApiError
from inflight_base.kube.kinds import RESOURCES
from inflight_base.manifest import Manifest

logger = logging.getLogger(__name__)

LEASE_NAME = "inflight-operator"
LEASE_SECONDS = 15
RENEW_DEADLINE_SECONDS = 10
RETRY_SECONDS = 2.0
"""client-go's defaults for its own leader election."""

CALL_SECONDS = 4.0
"""Timeout of one attempt; well below the renew deadline, so that a call that hangs is tried again."""


class LeaseLostError(Exception):
    """The Lease was not renewed in time, or another process holds it."""


async def _here(call: Coroutine[Any, Any, None]) -> None:
    await call


class Leadership:
    """Takes part in the election.

    Args:
        api: not guarded by `leads`: a standby writes the Lease too. Used in the loop of `beside` alone.
        namespace: namespace of the Lease.
        identity: name of this process, unique among the operator's pods.
        name: name of the Lease; operators for different services in one cluster need different ones.
        problem: returns why this process is unhealthy, or an empty text; called before each attempt.
        beside: runs a call in the loop of the election; by default in that of `lead`.
        clock: seconds of a steady clock, the same in all threads.
    """

    def __init__(
        self,
        api: KubeApi,
        namespace: str,
        identity: str,
        name: str = LEASE_NAME,
        *,
        problem: Callable[[], str] = str,
        beside: Callable[[Coroutine[Any, Any, None]], Coroutine[Any, Any, None]] = _here,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._identity = identity
        self._name = name
        self._problem = problem
        self._beside = beside
        self._now = clock
        self._renewed: float | None = None
        self._held: Manifest | None = None
        self._seen: Manifest = {}
        self._seen_at = 0.0

    def leads(self) -> bool:
        """Returns True while this process may act."""
        renewed = self._renewed
        return renewed is not None and self._now() < renewed + RENEW_DEADLINE_SECONDS

    async def lead(self, act: Callable[[], Awaitable[None]]) -> None:
        """Waits for the Lease, runs `act` while it is held, and releases it after `act` has ended. On cancellation
        `act` is cancelled first.

        Raises:
            LeaseLostError: the Lease was lost; `act` has ended.
            Exception: raised by `act`.
        """
        parts: list[asyncio.Future[None]] = []
        try:
            await self._beside(self._acquire())
            logger.info("leading as %s", self._identity)
            parts = [asyncio.create_task(self._beside(self._renew())), asyncio.ensure_future(act())]
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in reversed(parts):
                task.cancel()
                await _ended(task)
            self._renewed = None
            await _ended(asyncio.create_task(self._beside(self._release())))
        for task in parts:
            if not task.cancelled():
                task.result()

    async def _acquire(self) -> None:
        while True:
            try:
                async with asyncio.timeout(CALL_SECONDS):
                    if not self._problem() and await self._try():
                        return
            except (KubeApiError, TimeoutError) as error:
                logger.warning("cannot acquire Lease %s/%s: %s", self._namespace, self._name, _text(error))
            await asyncio.sleep(RETRY_SECONDS)

    async def _renew(self) -> None:
        """Renews the Lease until that fails.

        Raises:
            LeaseLostError: the Lease was not renewed in time, or another process holds it.
        """
        assert self._renewed is not None
        lease = f"Lease {self._namespace}/{self._name}"
        while True:
            deadline = self._renewed + RENEW_DEADLINE_SECONDS
            await asyncio.sleep(min(RETRY_SECONDS, deadline - self._now()))
            if self._now() >= deadline:
                raise self._lost(f"{lease} was not renewed for {RENEW_DEADLINE_SECONDS} s")
            if problem := self._problem():
                raise self._lost(f"{lease} is not renewed: {problem}")
            try:
                async with asyncio.timeout(min(CALL_SECONDS, deadline - self._now())):
                    if not await self._try():
                        raise self._lost(f"{lease} is held by another process")
            except (KubeApiError, TimeoutError) as error:
                logger.warning("cannot renew %s: %s", lease, _text(error))

    def _lost(self, why: str) -> LeaseLostError:
        """Ends the right to act at once: until the action has ended, the process's loop may be busy for a while."""
        self._renewed = None
        return LeaseLostError(why)

    async def _try(self) -> bool:
        """Takes or renews the Lease; False while another process holds it."""
        begun = self._now()
        if self._held is not None:  # one call renews a Lease that nobody else wrote
            try:
                await self._write(self._held)
                self._renewed = begun
                return True
            except KubeApiError as error:
                self._held = None
                if error.status not in (404, 409):
                    raise
        live = await self._api.get("Lease", self._namespace, self._name)
        # The holder of a Lease that was deleted acts until it notices: who has seen that Lease waits until it has run
        # out.
        spec = _spec(live) if live is not None else self._seen
        holder = spec.get("holderIdentity")
        if holder and holder != self._identity and not self._has_run_out(spec):
            return False
        await self._write(live)
        self._renewed, self._seen = begun, {}
        return True

    async def _write(self, live: Manifest | None) -> None:
        """Writes the Lease as this process's own. `live`: what is replaced; None creates it."""
        spec = _spec(live) if live is not None else {}
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        renewed = {"leaseDurationSeconds": LEASE_SECONDS, "renewTime": now}
        if spec.get("holderIdentity") != self._identity:
            transitions = spec.get("leaseTransitions", -1) + 1
            renewed |= {"holderIdentity": self._identity, "acquireTime": now, "leaseTransitions": transitions}
        if live is None:
            self._held = await self._api.create(
                {
                    "apiVersion": RESOURCES["Lease"][0],
                    "kind": "Lease",
                    "metadata": {"name": self._name, "namespace": self._namespace},
                    "spec": renewed,
                }
            )
        else:
            self._held = await self._api.replace({**live, "kind": "Lease", "spec": {**spec, **renewed}})

    def _has_run_out(self, spec: Manifest) -> bool:
        """Returns True if the Lease has expired, counted from the time when this process first saw its current state:
        clocks of two machines are not compared."""
        if spec != self._seen:
            self._seen, self._seen_at = spec, self._now()
        return self._now() >= self._seen_at + float(spec.get("leaseDurationSeconds", LEASE_SECONDS))

    async def _release(self) -> None:
        """Releases the Lease. A failure is only logged: the Lease then expires."""
        try:
            async with asyncio.timeout(CALL_SECONDS):
                live = await self._api.get("Lease", self._namespace, self._name)
                if live is None or _spec(live).get("holderIdentity") != self._identity:
                    return
                spec = {key: value for key, value in live["spec"].items() if key != "holderIdentity"}
                await self._api.replace({**live, "kind": "Lease", "spec": spec})
        except (KubeApiError, TimeoutError) as error:
            logger.warning("cannot release Lease %s/%s: %s", self._namespace, self._name, _text(error))


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__


def _spec(lease: Manifest) -> Manifest:
    """Returns the spec of a Lease, empty if it has none: both the spec and its fields are optional."""
    return lease.get("spec") or {}


async def _ended(task: asyncio.Future[None]) -> None:
    """Returns when the task has ended, also if this is cancelled meanwhile: a process that stops is often cancelled
    twice, by the task that failed and by the signal handler."""
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({task})
