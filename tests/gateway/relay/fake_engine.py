"""A stand-in for Envoy's inner listener with engines behind it: what it does to each request is scripted.

Its answers are made of a request's seed, so that a continuation with the wrong tokens or seed gives another answer.
Each token's text comes with it, but for every third token: that text is held back until the next one, as an engine does
while it could become a stop string.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

CREATED = 1_700_000_000


@dataclass(frozen=True)
class Do:
    """Script of one attempt.

    Attributes:
        status: status of an answer without progress frames, with `body`.
        cut: bytes of the frames after which the connection breaks. hang: likewise, but it stays open.
        error: a frame sent in place of all after the last whole frame within `cut` bytes: `:e` and its data.
        within: value of x-inflight-first-token-within. most: of x-inflight-max-attempts.
        split: bytes of each write; 0: all in one.
        pause_s: between two of these writes.
        endpoint: x-inflight-endpoint; empty: none.
        no_head: the connection closes in place of a response. early: the response comes before the request's body.
        frames: bytes sent in place of the model's.
    """

    status: int = 0
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    cut: int | None = None
    hang: int | None = None
    error: bytes = b""
    within: float | None = None
    most: int | None = None
    split: int = 0
    pause_s: float = 0.0
    endpoint: str = "10.0.0.1:8000"
    frames: bytes | None = None
    no_head: bool = False
    early: bool = False


@dataclass
class Seen:
    """A request as it came. Attributes: ended: set when its connection ended or its answer was written."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def json(self):
        return json.loads(self.body)


def token(seed: int, position: int) -> int:
    return 300 + (seed * 31 + position * 7) % 30_000


def events(asked: dict, drawn: list[int], created: int) -> list[tuple[str, int, bytes]]:
    """Frames of an undisturbed answer as (kind, choice, bytes); kinds: role, seed, token, finish, end."""
    n, length = asked.get("n") or 1, asked["max_tokens"]
    seeds = [asked["seed"] + i if "seed" in asked else drawn[i] for i in range(n)]
    frames: list[tuple[str, int, bytes]] = []

    def chunk(**more) -> bytes:
        return b"data: " + json.dumps({"id": "x", "created": created, **more}).encode() + b"\n\n"

    streamed = bool(asked.get("stream"))
    for i in range(n):
        if streamed:
            frames.append(("role", i, chunk(choices=[{"index": i, "delta": {"role": "assistant"}}])))
        if "seed" not in asked:
            frames.append(("seed", i, b":s %d %d\n\n" % (i, seeds[i])))
    frames.append(("heartbeat", 0, b":h\n\n"))
    lengths = [max(1, length - i) for i in range(n)]
    texts = [""] * n
    for position in range(length):
        for i in range(n):
            if position >= lengths[i]:
                continue
            last = position == lengths[i] - 1
            number = token(seeds[i], position)
            texts[i] += f" {number}é"
            note = b":t %d %d\n" % (i, number)
            if streamed and (last or position % 3 != 2):
                held = f" {token(seeds[i], position - 1)}é" if position and position % 3 == 0 else ""
                data = chunk(choices=[{"index": i, "delta": {"content": f"{held} {number}é"}}])
                frames.append(("token", i, note + data))
            else:
                frames.append(("token", i, note + b"\n"))
            if last:
                note = b":f %d length\n" % i
                data = chunk(choices=[{"index": i, "delta": {}, "finish_reason": "length"}]) if streamed else b"\n"
                frames.append(("finish", i, note + data))
        frames.append(("heartbeat", 0, b":h\n\n"))
    usage = {"prompt_tokens": 5, "cached_tokens": 1, "completion_tokens": sum(lengths)}
    note = b":u " + json.dumps(usage).encode() + b"\n"
    if streamed:
        frames.append(("end", 0, note + chunk(choices=[], usage=usage)))
        frames.append(("end", 0, b"data: [DONE]\n\n"))
    else:
        choices = [{"index": i, "text": texts[i], "finish_reason": "length"} for i in range(n)]
        body = json.dumps({"id": "x", "created": created, "choices": choices, "usage": usage}).encode()
        frames.append(("end", 0, note + b":w 200\ndata: " + body + b"\n\n"))
    return frames


def frames_for(asked: dict, attempt: int = 0, drawn: tuple[int, ...] = (11, 22, 33, 44)) -> bytes:
    """The frames that an engine answers this body with. A continuation must hold what the engine before it said."""
    given = asked.get("inflight_continuation")
    if given is None:
        return b"".join(frame for _, _, frame in events(asked, list(drawn), CREATED + attempt))
    n = asked.get("n") or 1
    assert len(given["choices"]) == n, given
    seeds = [choice["seed"] if choice["seed"] is not None else drawn[i] for i, choice in enumerate(given["choices"])]
    out = []
    told = [0] * n
    for kind, i, frame in events(asked, seeds, given["created"]):
        choice = given["choices"][i]
        if kind == "role" or (kind == "seed" and choice["seed"] is not None):
            continue
        if kind == "token":
            told[i] += 1
            if told[i] <= len(choice["token_ids"]):
                number = int(frame.split(b"\n")[0].split()[2])
                assert choice["token_ids"][told[i] - 1] == number, (choice, number)
                continue
        if kind == "finish" and choice["finish_reason"] is not None:
            continue
        out.append(frame)
    return b"".join(out)


class FakeEngine:
    """A scripted engine. Attributes: seen: requests in order. script: what to do to request N, counted from 0."""

    def __init__(self, script: Callable[[int, Seen], Do] | None = None) -> None:
        self.script = script or (lambda _number, _seen: Do())
        self.seen: list[Seen] = []
        self.connections = 0
        self._server: asyncio.Server
        self._tasks: set[asyncio.Task] = set()

    async def start(self, path: Path) -> None:
        self._server = await asyncio.start_unix_server(self._serve, str(path), backlog=4096, limit=2**26)

    async def stop(self) -> None:
        self._server.close()
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.current_task())
        self.connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(asyncio.current_task())
            writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        body = b""
        if self.script(len(self.seen), Seen(method, target, headers, b"")).early:
            writer.write(b"HTTP/1.1 403 X\r\ncontent-length: 0\r\n\r\n")
        if headers.get("transfer-encoding") == "chunked":
            while size := int(await reader.readline(), 16):
                body += await reader.readexactly(size)
                await reader.readline()
            await reader.readline()
        else:
            body = await reader.readexactly(int(headers.get("content-length", 0)))
        number = len(self.seen)
        seen = Seen(method, target, headers, body)
        self.seen.append(seen)
        return await self._answer(self.script(number, seen), seen, number, reader, writer)

    async def _answer(self, do: Do, seen: Seen, number: int, reader, writer) -> bool:
        if do.no_head:
            return False
        if do.early:
            return True
        own = [f"{name}: {value}" for name, value in do.headers]
        if do.endpoint:
            own.append(f"x-inflight-endpoint: {do.endpoint}")
        if do.status:
            length = (
                [] if any(name == "content-length" for name, _ in do.headers) else [f"content-length: {len(do.body)}"]
            )
            head = [f"HTTP/1.1 {do.status} X", *length, "x-inflight-service: ns/svc", *own, "", ""]
            writer.write("\r\n".join(head).encode() + (b"" if seen.method == "HEAD" else do.body))
            return True
        own += ["x-inflight-progress: 1", "x-inflight-service: ns/svc", "x-request-id: " + seen.headers["x-request-id"]]
        if do.within is not None:
            own.append(f"x-inflight-first-token-within: {do.within}")
        if do.most is not None:
            own.append(f"x-inflight-max-attempts: {do.most}")
        head = ["HTTP/1.1 200 OK", "content-type: text/event-stream", "transfer-encoding: chunked", *own, "", ""]
        writer.write("\r\n".join(head).encode())
        frames = frames_for(seen.json, number) if do.frames is None else do.frames
        end = next((each for each in (do.cut, do.hang) if each is not None), len(frames))
        if do.error:
            end = frames.rfind(b"\n\n", 0, end) + 2 if b"\n\n" in frames[:end] else 0
        sent = frames[:end] + do.error
        for begin in range(0, len(sent), do.split or max(1, len(sent))):
            part = sent[begin : begin + (do.split or len(sent))]
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            await writer.drain()
            if do.split:
                await asyncio.sleep(do.pause_s)
        if do.cut is not None and not do.error:
            writer.close()
            return False
        if do.hang is not None:
            with contextlib.suppress(ConnectionError):
                await reader.read(1)
            seen.cancelled.set()
            return False
        writer.write(b"0\r\n\r\n")
        return True
