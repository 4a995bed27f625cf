"""The process that validates grammars: what one does to memory, stack or time ends only this process.

Started as `python -m inflight_engine.grammars.checker_process`. Each line of stdin is a `Source`, and each of stdout
its `Checked`, both as JSON; it ends with stdin.
"""

from __future__ import annotations

import resource
import sys
import threading
from typing import NamedTuple

import msgspec

from inflight_engine.grammars import sources
from inflight_engine.grammars.compiled import GrammarError
from inflight_engine.grammars.sources import Source

_MAX_SECONDS = 2
"""CPU time of one grammar; the kernel counts whole seconds."""

_MAX_ADDRESS_SPACE = 1 << 30
"""In bytes."""

_STACK = 4 << 20
"""In bytes: half of what threads have where the grammar is compiled, with the same recursion, to be followed."""


class Checked(NamedTuple):
    """A validated grammar, serialized. `error`: why it cannot be followed; empty: it can."""

    text: str
    error: str = ""


def _serve() -> None:
    decoder = msgspec.json.Decoder(Source)
    for line in sys.stdin.buffer:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        most = int(usage.ru_utime + usage.ru_stime) + _MAX_SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))
        try:
            checked = Checked(sources.check(decoder.decode(line)))
        except GrammarError as error:
            checked = Checked("", str(error))
        sys.stdout.buffer.write(msgspec.json.encode(checked) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_ADDRESS_SPACE, _MAX_ADDRESS_SPACE))
    threading.stack_size(_STACK)
    thread = threading.Thread(target=_serve)
    thread.start()
    thread.join()
