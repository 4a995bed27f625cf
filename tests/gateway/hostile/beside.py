"""A client with an API key beside a flood of attacks."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from inflight_base.signing import PEER_SIGNATURE, get_message, signed
from tests.gateway.gateway_stack import GatewayStack
from tests.gateway.hostile.attacks import ATTACKS, LATE, SERVICES, UNDER_WAY
from tests.gateway.hostile.case import RIGHT_KEY, chat_body, post
from tests.gateway.hostile.engine import CheckingEngine
from tests.gateway.hostile.processes import Scheduled, family_resident_mib, family_scheduled, scheduled
from tools.measure.report import percentile

KEYLESS, KEYED, EVIL = "keyless.default", "keyed.default", "evil.default"
EVIL_ENGINES = 20
_KEY = b"of the gateway"

MOST_MIB = 1024
"""Memory limit of each container in the chart."""

_LOOK_S = 0.3


@dataclass
class Span:
    """Requests of the keyed client one after the other.

    Attributes:
        latencies_s: of each request. seconds: of all.
        used: use of the cores by program; `client` is the keyed client, with its engine.
    """

    latencies_s: list[float] = field(default_factory=list)
    seconds: float = 0.0
    used: dict[str, Scheduled] = field(default_factory=dict)

    @property
    def p99_ms(self) -> float:
        return 1e3 * percentile(self.latencies_s, 0.99)

    @property
    def waited_ms(self) -> float:
        """Returns the most that waits of the gateway and its client for a core can have added to the 99th percentile:
        all of them, in the slowest hundredth of the requests."""
        waited_s = sum(used.waited for used in self.used.values())
        return 1e3 * waited_s / max(1.0, 0.01 * len(self.latencies_s))

    def add(self, seconds: float, before: dict[str, Scheduled], after: dict[str, Scheduled]) -> None:
        self.seconds += seconds
        for name in after:
            self.used[name] = self.used.get(name, Scheduled(0.0, 0.0)) + (after[name] - before[name])


@dataclass
class Beside:
    """A run.

    Attributes:
        alone, beside: without attacks (before and after them), and with them.
        got: number of attacks by kind and by what they got. most_mib: highest memory of each program.
        faults: what happened and must not, and how often.
    """

    alone: Span = field(default_factory=Span)
    beside: Span = field(default_factory=Span)
    got: dict[tuple[str, str], int] = field(default_factory=dict)
    most_mib: dict[str, float] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)

    def sent(self, kind: str) -> int:
        """Returns the number of attacks of a kind."""
        return sum(count for (name, _), count in self.got.items() if name == kind)


async def run(
    folder: Path, *, alone_s: float, flood_s: float, rate: float, kinds: Sequence[str] = tuple(ATTACKS)
) -> Beside:
    """Measures a client alone, beside `rate` attacks of each kind a second, and alone again."""
    found = Beside()
    async with _attackers() as attackers, _gateway(folder, await attackers.engines()) as stack:
        client = _Client(stack, found)
        await client.send(1.0, Span())
        await client.send(alone_s / 2, found.alone)
        attackers.begin(stack, rate, kinds)
        with _memory(stack, found):
            await client.send(flood_s, found.beside)
            await _operator(stack, found)
        found.got = await attackers.end()
        await asyncio.sleep(1.0)  # until the connections of the attackers are closed
        await client.send(alone_s / 2, found.alone)
        _check(stack, found)
    return found


async def _operator(stack: GatewayStack, found: Beside) -> None:
    """Reads the state stream as the operator does: without it, no service sleeps or wakes."""
    path = "/v1/state?watch=1"
    signature = {PEER_SIGNATURE: signed((_KEY,), get_message(path), time.time())}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(5.0)) as http,
            http.get(stack.state_url + path, headers=signature) as answer,
        ):
            if answer.status != 200 or not await answer.content.readline():
                found.faults[f"the operator cannot read the state: {answer.status}"] += 1
    except (aiohttp.ClientError, TimeoutError) as error:
        found.faults[f"the operator cannot read the state: {type(error).__name__}"] += 1


class _Client:
    """Sends one request after the other on a kept connection."""

    def __init__(self, stack: GatewayStack, found: Beside) -> None:
        self._stack, self._found = stack, found
        self._request = post(chat_body(), ("Authorization", f"Bearer {RIGHT_KEY}"), host=KEYED)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, seconds: float, span: Span) -> None:
        """Sends for so long, and adds that to the span."""
        before, first = self._used(), time.monotonic()
        while (begin := time.monotonic()) < first + seconds:
            try:
                async with asyncio.timeout(60):
                    fault = await self._one()
            except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as error:
                fault, self._streams = f"{type(error).__name__}: {error}", None
            span.latencies_s.append(time.monotonic() - begin)
            if fault:
                self._found.faults[f"the client with a key: {fault}"] += 1
                await asyncio.sleep(0.1)
        span.add(time.monotonic() - first, before, self._used())

    def _used(self) -> dict[str, Scheduled]:
        pids = {name: process.pid for name, process in self._stack.processes.items()}
        own = {"client": scheduled(os.getpid())}
        return own | {name: family_scheduled(pid) for name, pid in pids.items()}

    async def _one(self) -> str:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._stack.port)
        reader, writer = self._streams
        writer.write(self._request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        body = await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n", 1)[0]))
        return "" if head.startswith(b"http/1.1 200") and b"fine" in body else f"{head[:20]!r} {body[:120]!r}"


class _Attackers:
    """The process of hostile engines and clients."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._in, self._out = process.stdin, process.stdout

    async def engines(self) -> list[str]:
        return list(json.loads(await self._out.readline()))

    def begin(self, stack: GatewayStack, rate: float, kinds: Sequence[str]) -> None:
        target = {"port": stack.port, "state_port": stack.state_port, "keyless": KEYLESS, "keyed": KEYED, "evil": EVIL}
        self._in.write(json.dumps({"target": target, "rate": rate, "kinds": kinds}).encode() + b"\n")

    async def end(self) -> dict[tuple[str, str], int]:
        self._in.close()
        return {(kind, result): count for kind, result, count in json.loads(await self._out.readline())}


@asynccontextmanager
async def _attackers() -> AsyncIterator[_Attackers]:
    command = (sys.executable, "-m", "tests.gateway.hostile.flood", str(EVIL_ENGINES))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        yield _Attackers(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def _gateway(folder: Path, evil: list[str]) -> AsyncIterator[GatewayStack]:
    engine = await CheckingEngine().start()
    stack = GatewayStack(folder)
    key = folder / "key"
    key.write_bytes(_KEY)
    stack.picker_flags += ["--gateway-key-file", str(key)]
    service = {"model": "m", "endpoints": [engine.address]}
    crowd = range(SERVICES)
    stack.services(
        *({"name": f"crowd-{number}", "model": "m", "api_keys_secret": f"keys-{number}"} for number in crowd),
        {"name": "keyless", **service},
        {"name": "keyed", **service, "api_keys_secret": "keys"},
        {"name": "evil", **service, "endpoints": evil},
        secrets=[_secret("keys", RIGHT_KEY), *(_secret(f"keys-{number}", f"ifk_{number}") for number in crowd)],
    )
    try:
        await stack.start_all()
        yield stack
    finally:
        stack.stop_all()
        await engine.stop()


def _secret(name: str, key: str) -> dict[str, Any]:
    entry = {"tenant": "acme", "sha256": hashlib.sha256(key.encode()).hexdigest()}
    return {"namespace": "default", "name": name, "data": {"acme-1": json.dumps(entry)}}


@contextmanager
def _memory(stack: GatewayStack, found: Beside) -> Iterator[None]:
    """Notes the highest memory of each program while the block runs, and ends one that takes too much."""

    async def watch() -> None:
        while True:
            for name, process in stack.processes.items():
                with suppress(FileNotFoundError):  # it has ended
                    mib = family_resident_mib(process.pid)
                found.most_mib[name] = max(mib, found.most_mib.get(name, 0.0))
                if mib > MOST_MIB:
                    process.kill()
            await asyncio.sleep(_LOOK_S)

    task = asyncio.create_task(watch())
    try:
        yield
    finally:
        task.cancel()


def _check(stack: GatewayStack, found: Beside) -> None:
    for name, process in stack.processes.items():
        if process.poll() is not None:
            found.faults[f"{name} ended"] += 1
        if found.most_mib[name] > MOST_MIB:
            found.faults[f"{name} took more than {MOST_MIB} MiB"] += 1
    for (kind, result), count in found.got.items():
        if result not in ATTACKS[kind][1] | {UNDER_WAY, LATE}:
            found.faults[f"{kind}: {result}"] += count
