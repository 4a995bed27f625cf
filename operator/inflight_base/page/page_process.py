"""A process of its own for large metrics pages: reading one of 800 kB takes some 12 ms, in which an event loop would do
nothing else."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from struct import Struct
from typing import IO, Any, Generic, TypeVar

import msgspec

from inflight_base.page.names import renamed
from inflight_base.page.reader import PageError

S = TypeVar("S")

START_SECONDS = 30.0
"""Seconds that the start of the process may take, beside the time for its first page."""

_NICENESS = 10
"""Pages of hostile engines must not take the CPU from the process that scrapes."""

_LENGTH = Struct("!I")
"""Bytes of the message that follows."""


class _Question(msgspec.Struct, array_like=True):
    """A page, the engine's own names on it, and further arguments of the reader."""

    page: bytes
    names: dict[str, str]
    more: list[int | float]


_encode = msgspec.msgpack.Encoder(enc_hook=list).encode
"""Buckets of histograms are arrays."""

_question = msgspec.msgpack.Decoder(_Question)


class PageProcess(Generic[S]):
    """Reads pages, one after another. The process starts with the first page, and again after it ended or was stopped.

    All methods are called in the event loop.

    Args:
        reader: function of a module that returns the sample of a page with our names. It gets numbers beside the page.
        sample: what it returns.
    """

    def __init__(self, reader: Callable[..., S], sample: type[S]) -> None:
        self._command = [sys.executable, "-P", "-m", __name__, reader.__module__, reader.__qualname__]
        answers: Any = sample | str
        self._answer: msgspec.msgpack.Decoder[S | str] = msgspec.msgpack.Decoder(answers)
        self._turn = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    async def read(self, page: bytes, names: Mapping[str, str], more: Sequence[float], limit: float) -> S:
        """Returns the sample of the page. A process that needs more than `limit` seconds is stopped.

        Args:
            names: names of samples on the page that differ from those that are read, by those.
            more: further arguments of the reader.

        Raises:
            PageError: the reader raises a ValueError, or the page was not read.
        """
        question = _encode(_Question(page, dict(names), list(more)))
        async with self._turn:
            process = self._process
            if process is None or process.poll() is not None:
                self.close()
                process, limit = self._start(), limit + START_SECONDS
            try:
                async with asyncio.timeout(limit):
                    answer = self._answer.decode(await asyncio.to_thread(_ask, process, question))
            except TimeoutError as error:
                self.close()
                raise PageError(f"{len(page)} bytes were not read within {limit:g} s") from error
            except (OSError, msgspec.MsgspecError) as error:
                self.close()
                raise PageError("the process that reads large pages ended") from error
            except BaseException:  # the next page must not get the answer to this one
                self.close()
                raise
        if isinstance(answer, str):
            raise PageError(answer)
        return answer

    def close(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in _pipes(process):
                with suppress(OSError):
                    pipe.close()

    def _start(self) -> subprocess.Popen[bytes]:
        try:
            # Not of the terminal's process group: an interrupt ends the scraper, which ends this process.
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            raise PageError(f"no process for large pages: {error}") from error
        return self._process


def _ask(process: subprocess.Popen[bytes], question: bytes) -> bytes:
    asked, answered = _pipes(process)
    _write(asked, question)
    return _read(answered)


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def _write(pipe: IO[bytes], message: bytes) -> None:
    pipe.write(_LENGTH.pack(len(message)))
    pipe.write(message)
    pipe.flush()


def _read(pipe: IO[bytes]) -> bytes:
    """Returns the next message; empty at the end."""
    length = pipe.read(_LENGTH.size)
    return pipe.read(*_LENGTH.unpack(length)) if length else b""


def main() -> None:
    """Answers questions until there are no more. Arguments: module and name of the reader."""
    os.nice(_NICENESS)
    reader = getattr(import_module(sys.argv[1]), sys.argv[2])
    while message := _read(sys.stdin.buffer):
        asked = _question.decode(message)
        try:
            answer = reader(renamed(asked.page, asked.names), *asked.more)
        except ValueError as error:
            answer = str(error)
        _write(sys.stdout.buffer, _encode(answer))


if __name__ == "__main__":
    main()
