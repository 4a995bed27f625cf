"""A stand-in for engines: what they do to each request is scripted.

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

from inflight_contract.channels import CHANNEL_PATH, COMMAND, FRAME, MAX_FRAME_BYTES

CREATED = 1_700_000_000


@dataclass(frozen=True)
class Do:
    """Script of one attempt.

    Attributes:
        refuse: the picker refuses it with this status, and Retry-After in `headers`.
        status: status of an answer without progress frames, with `body`.
        cut: bytes of the frames after which the connection breaks. hang: likewise, but it stays open.
        error: a frame sent in place of all after the last whole frame within `cut` bytes: `:e` and its data.
        within: seconds for the first token, from the picker.
        split: bytes of each write; 0: all in one.
        pause_s: between two of these writes; without `split`, before the answer.
        no_head: the connection closes in place of a response.
        frames: bytes sent in place of the model's.
    """

    refuse: int = 0
    status: int = 0
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    cut: int | None = None
    hang: int | None = None
    error: bytes = b""
    within: float = 60.0
    split: int = 0
    pause_s: float = 0.0
    frames: bytes | None = None
    no_head: bool = False


@dataclass
class Seen:
    """A request as it came. Attributes: address: of the engine. cancelled: set when its connection ended."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    address: str
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

    counts = (asked.get("stream_options") or {}).get("include_usage")

    def chunk(**more) -> bytes:
        text = json.dumps({"id": "x", "created": created, **more}, separators=(",", ":"))
        return b"data: " + text.encode() + b"\n\n"

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
        frames.append(("end", 0, note + (chunk(choices=[], usage=usage) if counts else b"")))
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


class Channel:
    """An open channel. Attributes: commands: as they came."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.commands: list[tuple[int, bool]] = []
        self.writer = writer
        self._reads: dict[int, asyncio.Event] = {}

    def lane(self, number: int) -> Lane:
        return Lane(self, number, self._reads.setdefault(number, asyncio.Event()))

    def take(self, number: int, *, reads: bool) -> None:
        self.commands.append((number, reads))
        event = self._reads.setdefault(number, asyncio.Event())
        event.set() if reads else event.clear()

    def close(self) -> None:
        for event in self._reads.values():
            event.set()

    def put(self, number: int, part: bytes) -> None:
        self.raw(FRAME.pack(number, len(part)) + part)

    def raw(self, data: bytes) -> None:
        self.writer.write(b"%x\r\n%b\r\n" % (len(data), data))


class Lane:
    """A stream in a channel, as a writer of the chunks of its own connection."""

    def __init__(self, channel: Channel, number: int, reads: asyncio.Event) -> None:
        self._channel, self._number, self._reads, self._parts = channel, number, reads, b""

    def write(self, chunk: bytes) -> None:
        if chunk != b"0\r\n\r\n":
            self._parts += chunk.partition(b"\r\n")[2][:-2]

    async def drain(self) -> None:
        await self._reads.wait()
        parts, self._parts = self._parts, b""
        for begin in range(0, len(parts), MAX_FRAME_BYTES):
            self._channel.put(self._number, parts[begin : begin + MAX_FRAME_BYTES])

    def end(self) -> None:
        self._channel.put(self._number, b"")

    def close(self) -> None:
        """Ends nothing: the own connection is cut."""


class FakeEngine:
    """Engines with one script.

    Attributes:
        offers: it has channels. refuses_channels: and opens none.
        channels: open ones, by name. opened: requests for them.
        addresses: of the engines.
        seen: requests in order.
        turn: attempts so far, those that the picker refused included. script: what to do in turn N.
    """

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.script: Callable[[int], Do] = lambda _turn: Do()
        self.seen: list[Seen] = []
        self.turn = 0
        self.connections = 0
        self.offers = self.refuses_channels = False
        self.channels: dict[str, Channel] = {}
        self.opened: list[dict[str, str]] = []
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task] = set()

    async def start(self, count: int) -> None:
        for _ in range(count):

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                host, port = writer.get_extra_info("sockname")
                await self._serve(f"{host}:{port}", reader, writer)

            self._servers.append(await asyncio.start_server(serve, "127.0.0.1", backlog=4096, limit=2**26))
            address = f"127.0.0.1:{self._servers[-1].sockets[0].getsockname()[1]}"
            self.addresses.append(address)

    async def stop(self, address: str | None = None) -> None:
        """Stop an engine, which then refuses connections; None: all."""
        for each, server in zip(self.addresses, self._servers, strict=True):
            if address in (None, each):
                server.close()
        if address is None:
            for task in [*self._tasks]:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.current_task())
        self.connections += 1
        try:
            while await self._one(address, reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(asyncio.current_task())
            writer.transport.abort()

    async def _one(self, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        if target == CHANNEL_PATH:
            return await self._channel(headers, reader, writer)
        body = b""
        if headers.get("transfer-encoding") == "chunked":
            while size := int(await reader.readline(), 16):
                body += await reader.readexactly(size)
                await reader.readline()
            await reader.readline()
        else:
            body = await reader.readexactly(int(headers.get("content-length", 0)))
        number = len(self.seen)
        seen = Seen(method, target, headers, body, address)
        self.seen.append(seen)
        self.turn += 1
        return await self._answer(self.script(self.turn - 1), seen, number, reader, writer)

    async def _answer(self, do: Do, seen: Seen, number: int, reader, writer) -> bool:
        if not do.split:
            await asyncio.sleep(do.pause_s)
        if do.no_head:
            return False
        own = [f"{name}: {value}" for name, value in do.headers]
        if do.status:
            length = (
                [] if any(name == "content-length" for name, _ in do.headers) else [f"content-length: {len(do.body)}"]
            )
            head = [f"HTTP/1.1 {do.status} X", *length, *own, "", ""]
            writer.write("\r\n".join(head).encode() + (b"" if seen.method == "HEAD" else do.body))
            return True
        own += ["x-inflight-progress: 1", "x-request-id: " + seen.headers["x-request-id"]]
        name, _, place = seen.headers.get("x-inflight-channel", "").partition(" ")
        channel = self.channels.get(name)
        if self.offers:
            own.append(f"x-inflight-channel: {place if channel else 0}")
        head = ["HTTP/1.1 200 OK", "content-type: text/event-stream", "transfer-encoding: chunked", *own, "", ""]
        writer.write("\r\n".join(head).encode())
        frames = frames_for(seen.json, number) if do.frames is None else do.frames
        if channel is None:
            return await self._write(frames, do, seen, reader, writer)
        lane = channel.lane(int(place))
        stays = await self._write(frames, do, seen, reader, lane)
        if stays:
            lane.end()
            writer.write(b"0\r\n\r\n")
        return stays

    async def _channel(self, headers: dict[str, str], reader, writer) -> bool:
        """Opens a channel, and reads its commands until it ends."""
        self.opened.append(headers)
        if self.refuses_channels:
            writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            return True
        channel = self.channels[headers["x-inflight-channel"]] = Channel(writer)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        try:
            while size := int(await reader.readline() or b"0", 16):
                commands = (await reader.readexactly(size + 2))[:-2]
                for number, reads in COMMAND.iter_unpack(commands):
                    channel.take(number, reads=bool(reads))
        finally:
            del self.channels[headers["x-inflight-channel"]]
            channel.close()
        return False

    async def _write(self, frames: bytes, do: Do, seen: Seen, reader, writer) -> bool:
        """Sends the frames as the script says; returns whether the connection stays."""
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
