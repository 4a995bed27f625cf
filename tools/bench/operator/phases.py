"""The phases: changes to the fleet while the operator is measured."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import aiohttp

from inflight_base.kube.client import KubeApi
from inflight_base.manifest.keys import ServiceKey
from tools.bench.operator import fleet
from tools.bench.operator.engines import EngineProcess
from tools.bench.operator.figures import Delays, Failover, PhaseFigures, phase_figures
from tools.bench.operator.fleet import Fleet
from tools.bench.operator.operators import LEADER, STANDBY, Operator, Operators
from tools.bench.operator.readings import AuditLog, Reading, Values, operator_values, writes_by_kind
from tools.localcluster.programs import kubectl_program
from tools.localcluster.progress import Progress
from tools.measure.processes import forget_peak, machine_cpu, process_cpu, process_memory

JUMP_REQUESTS = 40
"""Requests that wait in each engine of a service whose queue jumps: enough for maxReplicas at once."""
PATIENCE = 60.0
"""Seconds after a jump in which the write of replicas is waited for."""
FAILOVER_PATIENCE = 120.0
BURST = 30.0
"""Seconds in which all changes of the phases burst and create begin."""
QUIET_SECONDS = 10.0
"""Seconds without a write but of the Lease, after which the operator has settled."""
STANDBY_CORES = 0.2
"""Cores that an operator uses that stands by: below it, its watches have caught up."""


@dataclass
class Bench:
    """Dependencies of the phases.

    Attributes:
        api: for what users do.
        kubeconfig: the administrator's.
        others: pids of all other processes whose CPU is reported, by name.
    """

    options: argparse.Namespace
    api: KubeApi
    kubeconfig: Path
    services: Sequence[ServiceKey]
    fleet: Fleet
    engines: EngineProcess
    operators: Operators
    http: aiohttp.ClientSession
    audit: AuditLog
    others: dict[str, int]
    progress: Progress

    def __post_init__(self) -> None:
        self._random = random.Random(1)
        self._unused = list(self.services)
        self._random.shuffle(self._unused)

    async def settled(self, patience: float, quiet: float = QUIET_SECONDS) -> float | None:
        """Waits until the operator has written nothing but its Lease for `quiet` seconds; the steady time of its last
        write, None when it went on until the patience was over."""
        start = last = monotonic()
        while monotonic() - start < patience:
            self.audit_writes()
            await asyncio.sleep(1)
            if self.audit_writes().total():
                last = monotonic()
            elif monotonic() - last >= quiet:
                return last
        return None

    def restart(self, *flags: str) -> None:
        """Ends the operators of the first installation and starts one with further flags."""
        for number in (LEADER, STANDBY):
            self.operators.stop(number)
        self.operators.start(LEADER, *flags)

    def audit_writes(self) -> Counter[str]:
        """Writes since the last call, without those of Leases."""
        writes = writes_by_kind(self.audit.new_calls())
        return Counter({call: count for call, count in writes.items() if " leases" not in call})

    async def rest(self, operator: Operator) -> PhaseFigures:
        """Measures a phase of steady traffic."""
        return await self._watched("rest", operator, self._nothing)

    async def load(self, operator: Operator, name: str = "load") -> PhaseFigures:
        """Queues jump, spread over the phase."""
        chosen, span = self._next_services(), max(1.0, self.options.seconds - 3 * self.options.interval)
        return await self._watched(name, operator, lambda: self._spread(chosen, span, self._jump))

    async def burst(self, operator: Operator) -> PhaseFigures:
        """Queues jump, all within `BURST` seconds."""
        chosen = self._next_services()
        return await self._watched("burst", operator, lambda: self._spread(chosen, BURST, self._jump))

    async def create(self, operator: Operator) -> PhaseFigures:
        """Creates a new service for each ten, all within `BURST` seconds."""
        chosen = fleet.keys(max(1, len(self.services) // 10), first=len(self.services))
        self.namespaces(chosen)
        return await self._watched("create", operator, lambda: self._spread(chosen, BURST, self._creation))

    def namespaces(self, services: list[ServiceKey]) -> None:
        """Creates the namespaces of `services` that are missing."""
        items = {"apiVersion": "v1", "kind": "List", "items": list(fleet.with_namespaces(services))}
        kubectl_program.run(self.kubeconfig, ("apply", "-f", "-"), json.dumps(items))

    async def hung(self, operator: Operator) -> PhaseFigures:
        """Measures a phase in which one pod in ten never answers."""
        addresses = self.fleet.addresses()
        silent = self._random.sample(addresses, max(1, len(addresses) // 10))
        await self.engines.hung(True, silent)
        self.progress(f"{len(silent)} pods do not answer any more")
        try:
            await asyncio.sleep(3 * self.options.interval)
            return await self.load(operator, "hung")
        finally:
            await self.engines.hung(False, silent)

    async def leader(self, killed: Operator, standby: Operator) -> Failover:
        """Kills the leader; the other one has to act on queues that jump at the same moment."""
        await self._caught_up(standby)
        if _leads(await self._values(standby)):
            raise RuntimeError(f"{killed.name} lost its Lease while {standby.name} started: no leader is left to kill")
        chosen = self._next_services()
        written = {key: self.fleet.next_scale_up(key) for key in chosen}
        start = monotonic()
        os.kill(killed.pid, signal.SIGKILL)
        for key in chosen:
            await self._jump(key)
        self.progress(f"leader killed, {len(chosen)} queues jumped")

        def has_done(counter: str, count: int) -> Callable[[Values], bool]:
            return lambda values: values.get((f"inflight_operator_{counter}_total", "done"), 0.0) >= count

        seen = {
            "leads": _leads,
            "first_scrape": has_done("scrapes", 1),
            "all_scrapes": has_done("scrapes", len(self.fleet.addresses())),
            "first_round": has_done("reconcile", 1),
            "all_rounds": has_done("reconcile", len(self.services)),
        }
        times: dict[str, float] = {}
        while monotonic() - start < FAILOVER_PATIENCE:
            values = await self._values(standby)
            times |= {
                event: monotonic() - start for event, is_so in seen.items() if event not in times and is_so(values)
            }
            if len(times) == len(seen) and all(future.done() for future in written.values()):
                break
            await asyncio.sleep(0.25)
        writes = sorted(future.result() - start for future in written.values() if future.done())
        return Failover(
            **{event: times.get(event) for event in seen},
            first_write=writes[0] if writes else None,
            last_write=writes[-1] if len(writes) == len(written) else None,
        )

    async def _caught_up(self, operator: Operator, patience: float = 120.0) -> None:
        """Waits until the watches of an operator that stands by bring it few events."""
        start = monotonic()
        while monotonic() - start < patience:
            before = process_cpu(operator.pid)
            await asyncio.sleep(5)
            if (process_cpu(operator.pid) - before) / 5 < STANDBY_CORES and await self._values(operator):
                return

    async def _watched(
        self, name: str, operator: Operator, during: Callable[[], Awaitable[Delays | None]]
    ) -> PhaseFigures:
        self.progress(f"phase {name}: {self.options.seconds:g} s")
        forget_peak(operator.pid)
        self.audit.new_calls()
        before = await self._reading(operator)
        delays = await during()
        after = await self._reading(operator)
        return phase_figures(name, before, after, process_memory(operator.pid), self.audit.new_calls(), delays)

    async def _nothing(self) -> None:
        await asyncio.sleep(self.options.seconds)

    def _next_services(self) -> list[ServiceKey]:
        """Returns a tenth of the services, from those whose queue has not jumped yet."""
        count = max(1, min(len(self.services) // 4, max(5, len(self.services) // 10)))
        chosen, self._unused = self._unused[:count], self._unused[count:]
        return chosen

    async def _spread(
        self, chosen: Sequence[ServiceKey], span: float, change: Callable[[ServiceKey], Awaitable[object]]
    ) -> Delays:
        """Changes each service at a moment of its own in the first `span` seconds; its queue is empty again
        once its replicas are written."""
        start = monotonic()

        async def written_after(key: ServiceKey, after: float) -> float | None:
            await asyncio.sleep(after)
            written, begin = self.fleet.next_scale_up(key), monotonic()
            await change(key)
            try:
                return await asyncio.wait_for(written, PATIENCE) - begin
            except TimeoutError:
                return None
            finally:
                await self.engines.waiting(0, self.fleet.addresses(key))

        seconds = await asyncio.gather(*(written_after(key, self._random.uniform(0, span)) for key in chosen))
        await asyncio.sleep(max(0.0, start + self.options.seconds - monotonic()))
        return Delays.of(seconds)

    async def _jump(self, key: ServiceKey) -> None:
        await self.engines.waiting(JUMP_REQUESTS, self.fleet.addresses(key))

    async def _creation(self, key: ServiceKey) -> None:
        await self.api.create(fleet.service(key, self.options.pods_per_service))

    async def _reading(self, operator: Operator) -> Reading:
        """Raises ClusterError when the operator has ended, RuntimeError when it does not answer for a minute."""
        for _ in range(6):
            if values := await self._values(operator):
                break
        else:
            if not self.operators.is_running(operator):
                raise self.operators.ended(operator.name)
            raise RuntimeError(f"{operator.name} does not answer at its metrics port {operator.port}")
        pids = {
            "operator": operator.pid,
            **self.others,
            "fake engines": self.engines.pid,
            "this measurement": os.getpid(),
        }
        return Reading.now(pids, machine_cpu(), values, await self.engines.pages())

    async def _values(self, operator: Operator) -> Values:
        """Reads the operator's metrics; empty if it does not answer in time."""
        try:
            return await operator_values(self.http, operator.port)
        except (aiohttp.ClientError, TimeoutError):
            await asyncio.sleep(1)
            return {}


def _leads(values: Values) -> bool:
    return values.get(("inflight_operator_leader", ""), 0.0) == 1
