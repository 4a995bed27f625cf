"""A process of hostile engines and clients: `python -m tests.gateway.hostile.flood ENGINES`.

It prints the addresses of its engines, a JSON list. The line of its input is an object: `target`, a `Target`, `rate`
and `kinds`. Attacks of these kinds begin, that many of each a second, until the input's end. Then it prints their
numbers by kind and by what they got.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import secrets
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from tests.gateway.hostile.attacks import ATTACKS, CLOSED, HELD, HOLD_S, LATE, UNDER_WAY, Attack, Target
from tests.standin import TaskConnection
from tools.standin.connection import PROGRESS, Request, listen
from tools.standin.connection import Connection as EngineConnection

_ABSURD = b"inflight_kv_cache_tokens 1e12\ninflight_max_num_seqs 100000\ninflight_max_num_batched_tokens 100000\n"
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n%s: 1\r\n" % PROGRESS
_MUCH = b"x" * 2**16

_TICK_S, _STILL_S = 0.1, 1.0
"""How often the process notes that it runs, and after what time without such a note it did not."""


async def answer(request: Request, to: EngineConnection) -> None:
    """A hostile engine: a metrics page with a huge cache, and answers that never end."""
    if request.method == b"GET":
        to.whole(_ABSURD, b"text/plain")
        return
    frame = b'data: {"choices":[{"index":0,"delta":{"content":"' + _MUCH + b'"}}]}\n\n'
    start, more = secrets.choice(
        (
            (b"transfer-encoding: chunked\r\n\r\n", _chunk(frame)),  # frames without tokens
            (b"transfer-encoding: chunked\r\n\r\n" + _chunk(b"data: "), _chunk(_MUCH)),  # one frame
            (b"transfer-encoding: chunked\r\n\r\n", _chunk(b":t 999999999 1\ndata: {}\n\n")),
            (b"transfer-encoding: chunked\r\n\r\n", _chunk(b":t 0 " + b"7," * 2**15 + b"7\n\n")),
            (b"", b"x-more: " + _MUCH[:1000] + b"\r\n"),  # a head
            (b"transfer-encoding: chunked\r\n\r\n", _chunk(b":h\n\n")),
        )
    )
    to.transport.write(_HEAD + start)
    much = more * (1 + 4 * len(_MUCH) // len(more))
    with suppress(TimeoutError):
        async with asyncio.timeout(HOLD_S):
            while not to.transport.is_closing():
                if not to.transport.get_write_buffer_size():
                    to.transport.write(much)
                await asyncio.sleep(0.02)
    to.transport.abort()


def _chunk(part: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(part), part)


class Flood:
    """Attacks that run. Attributes: got: number of attacks by kind and result."""

    def __init__(self, target: Target, rate: float, kinds: Sequence[str]) -> None:
        self.got: Counter[tuple[str, str]] = Counter()
        self._target, self._rate, self._kinds = target, rate, kinds
        self._running: set[asyncio.Task[None]] = set()
        self._ran_at = self._stood_still_at = 0.0

    async def run(self) -> None:
        """Runs until cancelled; then no connection remains."""
        try:
            async with asyncio.TaskGroup() as kinds:
                kinds.create_task(self._tick())
                for number, kind in enumerate(self._kinds):
                    kinds.create_task(self._kind(kind, ATTACKS[kind][0], f"127.0.1.{number + 1}"))
        finally:
            for each in self._running:
                each.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    async def _kind(self, kind: str, attack: Attack, peer: str) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            task = loop.create_task(self._one(kind, attack, peer))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            due = max(due + 1 / self._rate, loop.time() - 1.0)
            await asyncio.sleep(due - loop.time())

    async def _tick(self) -> None:
        self._ran_at = asyncio.get_running_loop().time()
        while True:
            self._note_time()
            await asyncio.sleep(_TICK_S)

    def _note_time(self) -> float:
        now = asyncio.get_running_loop().time()
        if now > self._ran_at + _STILL_S:
            self._stood_still_at = now
        self._ran_at = now
        return now

    async def _one(self, kind: str, attack: Attack, peer: str) -> None:
        begun = self._note_time()
        try:
            result = await attack(self._target, peer)
            self._note_time()
            if result in (HELD, CLOSED) and self._stood_still_at > begun:
                result = LATE
        except OSError as error:
            result = f"no connection: {error.strerror or type(error).__name__}"
        except asyncio.CancelledError:
            result = UNDER_WAY
        self.got[kind, result] += 1


async def serve(engines: int) -> None:
    servers = [await listen(lambda: TaskConnection(answer)) for _ in range(engines)]
    addresses = [server.sockets[0].getsockname() for server in servers]
    print(json.dumps([f"{host}:{port}" for host, port, *_ in addresses]), flush=True)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    if line := await reader.readline():
        fields = json.loads(line)
        flood = Flood(Target(**fields["target"]), fields["rate"], fields["kinds"])
        running = asyncio.create_task(flood.run())
        await reader.read()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        print(json.dumps([[*key, count] for key, count in flood.got.items()]), flush=True)


if __name__ == "__main__":
    # Attackers have cores of their own: here they run while gateway and measured client leave a core idle.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    asyncio.run(serve(int(sys.argv[1])))
