"""Validates grammars of clients in a process of its own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import msgspec

from inflight_engine.grammars.checker_process import Checked
from inflight_engine.grammars.compiled import GrammarError
from inflight_engine.grammars.sources import Source


class Checker:
    """Validates one grammar after the other; starts the process for the first one, and anew where one ended it."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "grammars")
        self._process: subprocess.Popen[bytes] | None = None

    async def check(self, source: Source) -> str:
        """Return a grammar that can be followed, serialized.

        Raises:
            GrammarError: it cannot; the message names the place.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._check, source)

    def _check(self, source: Source) -> str:
        try:
            request = msgspec.json.encode(source)
        except ValueError as error:
            raise GrammarError(f"{source.field}: {error}") from None
        answer = self._ask(request)
        if not answer:
            raise GrammarError(f"{source.field}: the grammar takes too much time or memory to compile")
        checked = msgspec.json.decode(answer, type=Checked)
        if checked.error:
            raise GrammarError(checked.error)
        return checked.text

    def _ask(self, request: bytes) -> bytes:
        """Return a line of answer; empty: the process ended with this request."""
        if self._process is not None and self._process.poll() is not None:
            self._end(self._process)
        if self._process is None:
            command = [sys.executable, "-m", "inflight_engine.grammars.checker_process"]
            pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nothing)
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(request + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        if answer.endswith(b"\n"):
            return answer
        self._end(process)
        return b""

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        self._process = None
        process.kill()
        process.communicate()


CHECKER = Checker()
"""Shared by all that this process serves."""
