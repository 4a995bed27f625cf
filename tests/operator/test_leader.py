"""Losing the Lease: the holder stops acting before anyone else may start."""

import asyncio
from time import monotonic
from types import SimpleNamespace

from inflight_operator import leader as leader_module
from inflight_operator.leader import LEASE_NAME, SteadyLease
from inflight_operator.runtime import _Actor


class HangingServer:
    """Takes the first write, then answers nothing any more."""

    async def create_namespaced_lease(self, namespace, body):
        return body

    async def read_namespaced_lease(self, name, namespace):
        await asyncio.Event().wait()

    async def replace_namespaced_lease(self, name, namespace, body):
        await asyncio.Event().wait()


async def test_a_holders_calls_end_by_its_renew_deadline_when_the_server_hangs(monkeypatch):
    monkeypatch.setattr(leader_module, "RENEW_DEADLINE_SECONDS", 0.5)
    lease = SteadyLease(LEASE_NAME, "team", "first", None)
    lease.api_instance = HangingServer()
    record = SimpleNamespace(holder_identity="first", lease_duration="15", acquire_time=None, renew_time=None)
    monkeypatch.setattr(lease, "update_lease", lambda record: None)
    assert await lease.create(LEASE_NAME, "team", record)
    begun = monotonic()
    for _ in range(3):
        held, _ = await lease.get(LEASE_NAME, "team")
        assert not held
    assert monotonic() - begun < 1.0


async def test_the_loop_ends_with_the_election_without_waiting_for_the_watches():
    ended = asyncio.Event()

    async def act():
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def lost():
        await asyncio.sleep(0)

    actor = _Actor(act(), SimpleNamespace(hold=lost))
    async with asyncio.timeout(1):
        await ended.wait()
        await actor.ended.wait()
    assert actor.exit_code == 1
    await actor.stop()
