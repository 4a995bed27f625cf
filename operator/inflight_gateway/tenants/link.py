"""Calls to the gateway that owns a tenant's account: one call at a time, with all messages since the last one.

A request waits for at most one call in flight, and for its own: about one round trip in the pod network at low rates,
two at high rates, independent of the number of requests.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from inflight_gateway.tenants import wire
from inflight_gateway.tenants.accounts import Accounts, Admission, Settlement, TenantKey
from inflight_gateway.tenants.limits import Verdict

log = logging.getLogger(__name__)

ANSWER_S = 0.5
"""Longest wait for an owner. It answers within milliseconds; under a flood of requests its event loop may be late, and
deciding without it then would lift the limits just when they count."""

AWAY_S = 2.0
"""Back-off after an owner did not respond."""

MAX_ENTRIES = 1000
"""Most messages of each kind in a call."""

Send = Callable[[bytes], Awaitable[bytes]]
"""Sends a call and returns the answer. May raise OSError, TimeoutError or ValueError."""


class OwnerAwayError(Exception):
    """The owner did not respond in time."""


class Link:
    """The calls to one owner.

    Args:
        owner: name of its pod, for the log.
        sender: name of this gateway's pod.
        accounts: accounts of this gateway; admitted requests are charged there as well, and its requests in flight are
            reported.
    """

    def __init__(self, owner: str, sender: str, send: Send, accounts: Accounts) -> None:
        self._owner = owner
        self._sender = sender
        self._send = send
        self._accounts = accounts
        self._admissions: list[tuple[Admission, asyncio.Future[tuple[Verdict, int]]]] = []
        self._settlements: list[Settlement] = []
        self._alone: dict[TenantKey, tuple[int, int]] = {}
        """Requests and tokens admitted without the owner and not yet reported to it."""
        self._touched: set[TenantKey] = set()
        self._task: asyncio.Task[None] | None = None
        self._away_until = 0.0
        self._failing = False

    @property
    def away(self) -> bool:
        """True if the last call failed recently."""
        return time.monotonic() < self._away_until

    async def admit(self, admission: Admission) -> tuple[Verdict, int]:
        """Asks the owner to admit one request.

        Returns:
            The owner's verdict, and the slot of the charge in this gateway's own accounts.

        Raises:
            OwnerAwayError: the owner does not respond; decide without it.
        """
        future: asyncio.Future[tuple[Verdict, int]] = asyncio.get_running_loop().create_future()
        self._admissions.append((admission, future))
        self._wake()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._undo(admission, *future.result())
            raise

    def settle(self, settlement: Settlement) -> None:
        """Reports the real usage of an admitted request to the owner."""
        if not self.away:
            self._settlements.append(settlement)
            self._wake()

    def admitted_alone(self, admission: Admission) -> None:
        """Adds a request that was admitted without the owner, to report it when the owner responds again: the owner
        then admits less, so that the limits hold on average."""
        requests, tokens = self._alone.get(admission.key, (0, 0))
        self._alone[admission.key] = requests + 1, tokens + admission.tokens

    def touch(self, key: TenantKey) -> None:
        """Reports the tenant's requests in flight here to the owner."""
        self._touched.add(key)
        if not self.away:
            self._wake()

    async def close(self) -> None:
        """Cancels the call in flight."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _wake(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._drain(), name=f"limits of {self._owner}")

    async def _drain(self) -> None:
        while self._admissions or self._settlements or self._touched:
            admissions, self._admissions = self._admissions[:MAX_ENTRIES], self._admissions[MAX_ENTRIES:]
            settled, self._settlements = self._settlements[:MAX_ENTRIES], self._settlements[MAX_ENTRIES:]
            touched, self._touched = self._touched, set()
            alone, self._alone = self._alone, {}
            keys = touched | {admission.key for admission, _ in admissions}
            batch = wire.Batch(
                gateway=self._sender,
                admissions=tuple(admission for admission, _ in admissions),
                settlements=tuple(settled),
                in_flight=tuple(wire.InFlight(key, self._accounts.in_flight(key)) for key in keys),
                alone=tuple(wire.Alone(key, *numbers) for key, numbers in alone.items()),
            )
            try:
                async with asyncio.timeout(ANSWER_S):
                    answer = wire.verdicts(await self._send(wire.encoded(batch)))
                if len(answer) != len(admissions):
                    raise ValueError("it has another number of verdicts")
            except Exception as error:  # the waiting requests must get their verdict in any case
                self._failed(admissions, error)
                return
            self._recovered()
            for (admission, future), verdict in zip(admissions, answer, strict=True):
                self._answered(admission, future, verdict)

    def _answered(self, admission: Admission, future: asyncio.Future[tuple[Verdict, int]], verdict: Verdict) -> None:
        # Charged here, not by the coroutine that waits: the next call reports requests in flight, and may be sent
        # before that.
        slot = self._accounts.charge(admission, time.monotonic()) if verdict.refused_by is None else 0
        if future.done():
            self._undo(admission, verdict, slot)
        else:
            future.set_result((verdict, slot))

    def _undo(self, admission: Admission, verdict: Verdict, slot: int) -> None:
        """Reverts the admission of a request that was cancelled meanwhile."""
        if verdict.refused_by is not None:
            return
        self._accounts.release(admission.key)
        self._accounts.settle(Settlement(admission.key, admission.tokens, 0, slot), time.monotonic())
        self.touch(admission.key)
        self.settle(Settlement(admission.key, admission.tokens, 0, verdict.slot))

    def _recovered(self) -> None:
        if self._failing:
            log.info("gateway %s answers for limits again", self._owner)
        self._failing = False

    def _failed(
        self, admissions: list[tuple[Admission, asyncio.Future[tuple[Verdict, int]]]], error: Exception
    ) -> None:
        if not self._failing:
            said = str(error) or type(error).__name__
            log.warning("gateway %s does not answer for limits, deciding alone for now: %s", self._owner, said)
        self._failing = True
        self._away_until = time.monotonic() + AWAY_S
        for _, future in (*admissions, *self._admissions):
            if not future.done():
                future.set_exception(OwnerAwayError())
        self._admissions = []
        # Messages that may have arrived are not resent: a double refund would raise a limit, a double charge would
        # lower it.
        self._settlements = []
