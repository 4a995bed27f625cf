"""An event loop in virtual time: where nothing is ready it jumps to the next timer."""

from __future__ import annotations

import asyncio
import contextvars
import selectors
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")

HOST: contextvars.ContextVar[str] = contextvars.ContextVar("HOST", default="")
"""Pod and program that a task belongs to, and the connections that it opens and takes."""


def at(host: str, call: Callable[[Any], object], argument: object) -> None:
    """Calls a function of a host: the tasks that it begins are there."""
    token = HOST.set(host)
    call(argument)
    HOST.reset(token)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its connections are pipes in memory, on UNIX sockets and on TCP ports alike. A host is a program of a pod, `POD
    PROGRAM`. Bytes take `between_s` from one pod to another, and no time within one.

    A host that is killed has no connections, and refuses new ones. Nothing comes from and to a host that hangs; it goes
    on when it is awake again.
    """

    def __init__(self, between_s: float = 0.0) -> None:
        self._now = 0.0
        super().__init__(_Clock(self))
        self._clock_resolution = 1e-9
        self._between_s = between_s
        self._listeners: dict[object, _Listener] = {}
        self._pipes: set[_Pipe] = set()
        self._hung: set[str] = set()
        self._backlog: list[_Pipe] = []
        """Ends at hosts that hang: the kernel has taken the connections, and nothing reads them."""

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def pass_time(self, seconds: float | None) -> None:
        if seconds is None:
            raise RuntimeError("nothing can ever happen again")
        self._now += seconds

    def kill(self, host: str) -> None:
        for address in [one for one, listener in self._listeners.items() if listener.host == host]:
            del self._listeners[address]
        for pipe in [one for one in self._pipes if one.host == host]:
            pipe.abort()

    def hang(self, host: str) -> None:
        self._hung.add(host)

    def wake(self, host: str) -> None:
        self._hung.discard(host)
        backlog, self._backlog = self._backlog, []
        for pipe in backlog:
            self._accept(pipe)
        for pipe in [one for one in self._pipes if host in (one.host, one.peer.host)]:
            pipe.deliver()

    def hangs(self, *hosts: str) -> bool:
        return not self._hung.isdisjoint(hosts)

    @property
    def idle(self) -> bool:
        """True if nothing is under way between hosts that do not hang."""
        return all(pipe.idle or self.hangs(pipe.host, pipe.peer.host) for pipe in self._pipes)

    # What programs call.

    async def create_unix_server(self, factory: Any, path: Any = None, **_: Any) -> Any:
        return self._listen(factory, str(path))

    async def create_server(self, factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return self._listen(factory, port)

    async def create_unix_connection(self, factory: Any, path: Any = None, **_: Any) -> Any:
        return await self._connect(factory, str(path))

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return await self._connect(factory, port)

    def _listen(self, factory: Callable[[], asyncio.Protocol], address: object) -> _Listener:
        listener = _Listener(factory, HOST.get(), address, lambda: self._listeners.pop(address, None))
        self._listeners[address] = listener
        return listener

    async def _connect(self, factory: Callable[[], asyncio.Protocol], address: object) -> Any:
        host = HOST.get()
        listener = self._listeners.get(address)
        await asyncio.sleep(0.0 if listener is None else self.delay(host, listener.host))
        if listener is None:
            raise ConnectionRefusedError(f"nothing listens at {address}")
        near, far = _Pipe(self, host, factory()), _Pipe(self, listener.host, listener.factory())
        near.peer, far.peer = far, near
        self._pipes |= {near, far}
        self._accept(far)
        near.protocol.connection_made(near)
        return near, near.protocol

    def _accept(self, pipe: _Pipe) -> None:
        if self.hangs(pipe.host):
            self._backlog.append(pipe)
        else:
            at(pipe.host, pipe.protocol.connection_made, pipe)

    def delay(self, host: str, other: str) -> float:
        """Returns the seconds from one host to another."""
        return 0.0 if host.split()[:1] == other.split()[:1] else self._between_s

    def forget(self, pipe: _Pipe) -> None:
        self._pipes.discard(pipe)


def run(main: Callable[[], Awaitable[T]], between_s: float = 0.0) -> T:
    """Runs a coroutine function in virtual time."""
    loop = VirtualLoop(between_s)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(_main(main))


async def _main(main: Callable[[], Awaitable[T]]) -> T:
    return await main()


class _Clock(selectors.SelectSelector):
    """Never waits."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout != 0:
            self._loop.pass_time(timeout)
        return []


class _Listener:
    def __init__(
        self, factory: Callable[[], asyncio.Protocol], host: str, address: object, close: Callable[[], object]
    ) -> None:
        self.factory, self.host, self.address, self.close = factory, host, address, close
        self.sockets = (self,)

    def getsockname(self) -> tuple[str, object]:
        return self.host, self.address

    async def wait_closed(self) -> None:
        """Closed at once."""


class _Pipe(asyncio.Transport):
    """An end of a connection. Attributes: host: where it is. peer: the other end."""

    def __init__(self, loop: VirtualLoop, host: str, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.host, self.protocol = host, protocol
        self.peer: _Pipe
        self._loop = loop
        self._sent: deque[bytes | None] = deque()
        """Bytes under way to the peer; None: the end of the stream."""
        self._closing = False

    def write(self, data: Any) -> None:
        if not self._closing:
            self._put(bytes(data))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._put(None)
            self._loop.call_soon(self._lost)

    abort = close

    @property
    def idle(self) -> bool:
        return not self._sent

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return sum(len(each) for each in self._sent if each is not None)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Has no limits."""

    def _put(self, data: bytes | None) -> None:
        if not self._sent:
            self._loop.call_later(self._loop.delay(self.host, self.peer.host), self.deliver)
        self._sent.append(data)

    def deliver(self) -> None:
        """Brings the peer what was sent, unless one of the hosts hangs."""
        if not self._sent or self._loop.hangs(self.host, self.peer.host):
            return
        sent = list(self._sent)
        self._sent.clear()
        if self._closing:
            self._loop.forget(self)
        data = b"".join(each for each in sent if each is not None)
        if self.peer.is_closing():
            return
        if data:
            at(self.peer.host, self.peer.protocol.data_received, data)
        if sent[-1] is None:
            self.peer.close()

    def _lost(self) -> None:
        if not self._sent:
            self._loop.forget(self)
        at(self.host, self.protocol.connection_lost, None)
