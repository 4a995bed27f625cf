"""A gateway of real processes under hostile requests, and what must hold during and after them."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import psutil

from tests.gateway.gateway_stack import GatewayStack, until
from tests.gateway.hostile import kinds, kinds2
from tests.gateway.hostile.case import RIGHT_KEY, TWICE, Case
from tests.gateway.hostile.engine import CheckingEngine
from tests.gateway.hostile.wire import send
from tests.gateway.tenants.things import secret

GOOD_SHARE = 0.1
PARTS = 10
"""Parts of a run: at the end of each, memory and descriptors are counted while nothing is in flight."""

_CRASH = re.compile(r'Traceback|"exception"|"level": ?"(ERROR|CRITICAL)"|without the picker|\[critical\]|Segmentation')


@dataclass(frozen=True, slots=True)
class Used:
    """Resources of a program, all its processes together. Attributes: memory_mib: resident. files: open descriptors."""

    memory_mib: float
    files: int


@dataclass
class Report:
    """Report of a run. Attributes: faults: by what is wrong, with the first case of each. used: at the end of each
    part."""

    counts: Counter[str] = field(default_factory=Counter)
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    faults: dict[str, str] = field(default_factory=dict)
    fault_counts: Counter[str] = field(default_factory=Counter)
    used: list[dict[str, Used]] = field(default_factory=list)
    seconds: float = 0.0

    def fault(self, what: str, case: Case | None = None) -> None:
        self.fault_counts[what] += 1
        self.faults.setdefault(what, "" if case is None else shown(case))

    def growth(self, program: str) -> Used:
        """Returns the growth from the end of the second part to the end of the last one."""
        first, last = self.used[1][program], self.used[-1][program]
        return Used(last.memory_mib - first.memory_mib, last.files - first.files)


def shown(case: Case) -> str:
    sent = b"".join(piece for piece in case.pieces if isinstance(piece, bytes))
    return f"{case.leave.name} {len(sent)} bytes {sent[:300]!r}{'...' if len(sent) > 300 else ''}"


def draw(seed: int, number: int) -> Case:
    """Case `number` of a seed, whatever came before it."""
    random = Random(f"{seed}/{number}")
    if random.random() < GOOD_SHARE:
        return kinds.good(random)
    of_http2 = random.random() < 0.15
    return random.choice(kinds2.KINDS if of_http2 else kinds.KINDS)(random)


class Hostile:
    """A run against a gateway. Attributes: stack: started. engines: of all services."""

    def __init__(self, stack: GatewayStack, engines: list[CheckingEngine], decoy: str, touched: list[str]) -> None:
        self.stack, self.engines = stack, engines
        self._decoy, self._touched = decoy, touched
        self.report = Report()
        self._programs = self._processes()

    def _processes(self) -> dict[str, list[psutil.Process]]:
        found = {}
        for name, process in self.stack.processes.items():
            parent = psutil.Process(process.pid)
            found[name] = [parent, *parent.children(recursive=True)]
        return found

    async def run(self, count: int, seed: int, clients: int) -> Report:
        """Plays the cases 0 to `count` of a seed."""
        begin = time.monotonic()
        for part in range(PARTS):
            numbers = iter(range(count * part // PARTS, count * (part + 1) // PARTS))
            await asyncio.gather(*(self._client(numbers, seed) for _ in range(clients)))
            await self._idle()
            self.report.used.append(self._used())
        self.report.seconds = time.monotonic() - begin
        self._check_end()
        return self.report

    async def _client(self, numbers: Iterator[int], seed: int) -> None:
        for number in numbers:
            await self._play(kinds.with_decoy(draw(seed, number), self._decoy))

    async def _play(self, case: Case) -> None:
        """Plays a case, and adds the faults of its answers to the report."""
        report = self.report
        report.counts[case.kind] += 1
        try:
            outcome, broken = await send(case, self.stack.port)
        except OSError as error:
            report.fault(f"{case.kind}: no connection: {error}", case)
            return
        if broken:
            report.fault(f"{case.kind}: {broken}", case)
        if case.certain and not outcome.answers and not broken:
            report.fault(f"{case.kind}: no answer", case)
        for status, body in outcome.answers:
            report.statuses[case.kind, status] += 1
            self._check(case, status, body)

    def _check(self, case: Case, status: int, body: bytes) -> None:
        if not case.allows(status):
            self.report.fault(f"{case.kind}: status {status} {body[:120]!r}", case)
        elif status >= 400 and not case.head and not _says_what(body):
            self.report.fault(f"{case.kind}: status {status} without an error object: {body[:80]!r}", case)
        if b"Traceback" in body or b'File "' in body:
            self.report.fault(f"{case.kind}: a stack trace in the answer", case)
        if case.good and b"fine" not in body:
            self.report.fault(f"{case.kind}: another answer: {body[:80]!r}", case)

    async def _idle(self) -> None:
        state: Any = None

        async def none_open() -> bool:
            nonlocal state
            state = await self.stack.state()
            return all(not one["in_flight"] and not one.get("held") for one in state["services"])

        try:
            await until(none_open, "nothing is in flight", 60)
        except AssertionError:
            self.report.fault(f"requests in flight or held remain: {state}")

    def _used(self) -> dict[str, Used]:
        return {
            name: Used(sum(one.memory_info().rss for one in processes) / 2**20, sum(one.num_fds() for one in processes))
            for name, processes in self._programs.items()
            if all(one.is_running() for one in processes)
        }

    def _check_end(self) -> None:
        for name, before in self._programs.items():
            if not all(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in before):
                self.report.fault(f"a process of {name} died")
            crash = _CRASH.search(log := self.stack.log(name))
            if crash is not None:
                self.report.fault(f"the log of {name}: {log[crash.start() - 200 : crash.start() + 1500]}")
        for engine in self.engines:
            for fault in engine.faults:
                self.report.fault(f"an engine got {fault}")
        for peer in self._touched:
            self.report.fault(f"something connected to a forged address: {peer}")


def _says_what(body: bytes) -> bool:
    try:
        return len(json.loads(body)["error"]["message"]) > 5
    except (ValueError, KeyError, TypeError):
        return False


@asynccontextmanager
async def hostile_gateway(folder: Path) -> AsyncIterator[Hostile]:
    """A gateway with two engines, started."""
    engines = [await CheckingEngine().start() for _ in range(2)]
    touched: list[str] = []
    decoy = await asyncio.start_server(
        lambda _, writer: touched.append(str(writer.get_extra_info("peername"))), "127.0.0.1", 0
    )
    stack = GatewayStack(folder)
    key = folder / "key"
    key.write_bytes(b"of the gateway")
    stack.picker_flags += ["--gateway-key-file", str(key)]
    addresses = [engine.address for engine in engines]
    data = {name: value.decode() for name, value in secret(acme=RIGHT_KEY).items()}
    limits = {"requests_per_minute": 10**9, "tokens_per_minute": 10**12}
    stack.services(
        {"name": "open", "model": "m", "endpoints": addresses},
        {
            "name": "keyed",
            "model": "k",
            "endpoints": addresses[:1],
            "api_keys_secret": "keys",
            "default_limits": limits,
        },
        {"name": "asleep", "model": "z", "endpoints": []},
        *({"namespace": one, "name": TWICE, "model": "t", "endpoints": addresses} for one in ("a", "b")),
        secrets=[{"namespace": "default", "name": "keys", "data": data}],
    )
    try:
        await stack.start_all()
        yield Hostile(stack, engines, f"127.0.0.1:{decoy.sockets[0].getsockname()[1]}", touched)
    finally:
        stack.stop_all()
        decoy.close()
        for engine in engines:
            await engine.stop()
