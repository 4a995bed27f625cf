"""Throughput of one API process in tokens/s and streams, with an engine process that computes nothing.

    python -m tools.bench.api_process [--streams N ...] [--tokens N] [--step-ms MS | --rate N | --saturated]
        [--together N] [--whole] [--progress] [--server FLAGS]
    python -m tools.bench.api_process --bodies [NAME ...] [--tries N]

A stand-in for the engine process sends a token for each stream in every step, over the real socket and in the real
messages; clients in a process of their own read the answers. By default steps are so slow that every token is an event
of its own, as under a real engine that the API process keeps up with. `--rate` offers so many tokens/s to all streams
together. With `--saturated` steps are sent as fast as the API process reads them, which is then always behind: tokens
of a stream that are there together share an event. `--together` sends so many steps at once, as they are there after
the API process was busy with other streams for so long: what an event of so many tokens costs. `--progress` asks for
progress frames, as a gateway does. `--server` gives flags to the server, as in
`--server="--enable-access-log --log-format json"`.

The figure is the CPU time of the API process for each token, and tokens/s is what a core of its own carries at that;
unlike seconds on the clock it means something while others use the machine. The CPU time of a request is all that
happens before its first token: accept, parse, tokenize five letters, submit, admit.

`--bodies` measures the delay of others instead, with a real engine: the longest time between two events of a stream
while a body of each kind arrives, of 32 MiB or with as many values as one may have. The exit status is 1 where that is
100 ms or more.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import multiprocessing
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np

from inflight_engine import logs
from inflight_engine.channel import FrameDecoder, encode
from inflight_engine.messages import AddRequest, Admission, CancelRequest, EngineReady, Finished, StepReport, StepStats
from inflight_engine.models.checkpoints.source import resolve
from inflight_engine.models.tokens.tokenizer import load_tokenizer
from inflight_engine.models.version import digest_of
from inflight_engine.request import FinishReason
from inflight_engine.runner_info import RunnerInfo
from inflight_engine.server.engine.process import EngineProcess
from inflight_engine.server.run import run
from inflight_engine.server.settings.flags import add_serve_flags, read_config
from inflight_kubectl.load.answers import Answer
from inflight_kubectl.load.client import Client
from inflight_settings.limits import Limits
from tools.bench import api_gaps
from tools.measure.report import cpu_model
from tools.measure.served import MODEL

_TEXT = "Requests that wait are admitted when a slot and memory are free, so that none of them starves. "


class _CountingEngine(EngineProcess):
    """Stands for the process that the API process starts: it is only its socket, and never ends by itself."""

    def __init__(self, sock: socket.socket) -> None:
        self.started = time.monotonic()
        self.socket = sock

    def wait(self, timeout: float) -> int | None:
        return 0

    def kill(self) -> None:
        self.socket.close()


def _serve(sock: socket.socket, listener: socket.socket, flags: Sequence[str]) -> None:
    parser = argparse.ArgumentParser()
    add_serve_flags(parser)
    config = read_config(parser, [MODEL, "--max-queued-requests=100000", *flags])
    if flags:
        logs.configure(config.engine.log_format, config.engine.log_level)
    run(config, _CountingEngine(sock), listener)


def _read_answers(
    address: tuple[str, int], streams: int, tokens: int, whole: bool, progress: bool, counted: Connection
) -> None:
    """Sends how many events with tokens there were, but for the end of each choice."""
    body = {"prompt": "hello", "stream": not whole, "ignore_eos": True, "max_tokens": tokens}

    async def read(client: Client) -> int:
        answer = Answer(time.monotonic())
        await client.ask(body, answer, headers={"X-Inflight-Progress": "1"} if progress else None)
        return 0 if whole else answer.pieces - 1

    async def read_all() -> None:
        async with Client(f"http://{address[0]}:{address[1]}", keep=False) as client:
            counted.send(sum(await asyncio.gather(*(read(client) for _ in range(streams)))))

    asyncio.run(read_all())


class _Engine:
    """The benchmark's end of the socket: takes requests, and sends steps."""

    def __init__(self, sock: socket.socket, slots: int) -> None:
        self._socket = sock
        self._decoder = FrameDecoder.for_engine()
        self._steps = 0
        limits = Limits(slots, max(slots, 8192))
        digest = digest_of(resolve(MODEL))
        facts = RunnerInfo(1 << 20, 16, 8192, 1, 49152, "none", "none", "none", 0.0, digest=digest)
        self._send(EngineReady(limits, facts))

    def _send(self, *messages: EngineReady | StepReport) -> None:
        self._socket.sendall(b"".join(map(encode, messages)))

    def admit(self, count: int) -> list[int]:
        """Take the next requests, and give each a slot, in their order. Returns their ids."""
        ids: list[int] = []
        while len(ids) < count:
            came: list[Admission] = []
            for message in self._decoder.feed(self._socket.recv(1 << 20)):
                if isinstance(message, AddRequest):
                    came.append(Admission(message.request_id, len(ids) + len(came)))
                elif not isinstance(message, CancelRequest):
                    raise AssertionError(f"the bench does not answer {message}")
            ids += [admission.request_id for admission in came]
            self._send(self._report(b"", b"", came))
        return ids

    def decode(self, token_ids: Sequence[int], ids: Sequence[int], *, last: bool) -> None:
        """Report some steps at once; each gives the same token to every slot. `last`: the requests end."""
        slots = np.arange(len(ids), dtype=np.int32).tobytes()
        steps = [self._report(slots, np.full(len(ids), token_id, np.int32).tobytes(), ()) for token_id in token_ids]
        if last:
            steps[-1].finished.extend(Finished(request_id, FinishReason.LENGTH) for request_id in ids)
        self._send(*steps)

    def _report(self, slots: bytes, tokens: bytes, admitted: Sequence[Admission]) -> StepReport:
        running = len(slots) // 4
        stats = StepStats(running, 0, 0, 0.5, 0, 0, 0, 0, 0, running, 0.01, 0.0)
        self._steps += 1
        return StepReport(self._steps, list(admitted), slots, tokens, [], [], stats)


def _cpu_seconds(pid: int) -> float:
    # The process's CPU clock (clock_getcpuclockid(3)): threads that ended count too.
    return time.clock_gettime((~pid << 3) | 2)


def _wait_ready(address: tuple[str, int]) -> None:
    """Waits until the API process has loaded its tokenizer."""
    for _ in range(600):
        connection = http.client.HTTPConnection(*address, timeout=60)
        connection.request("GET", "/ready")
        if connection.getresponse().status == 200:
            return
        time.sleep(0.1)
    raise TimeoutError("the API process is not ready after a minute")


class Cost(NamedTuple):
    """Cost of answers in the API process.

    Attributes:
        request, token: CPU seconds for each.
        events: events for each token; below 1, tokens were sent together.
    """

    request: float
    token: float
    events: float


def measure(
    streams: int,
    tokens: int,
    step_seconds: float,
    *,
    together: int = 1,
    whole: bool = False,
    progress: bool = False,
    server: Sequence[str] = (),
) -> Cost:
    """Measures the cost of `streams` answers of `tokens`.

    Args:
        step_seconds: from one step to the next; 0: no longer than it takes to send one.
        together: steps that are sent at once.
        whole: answers are not streamed.
        progress: answers come in progress frames.
        server: flags of the server.
    """
    text = load_tokenizer(resolve(MODEL)).encode(_TEXT)
    ours, theirs = socket.socketpair()
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    context = multiprocessing.get_context("fork")
    api = context.Process(target=_serve, args=(theirs, listener, server))
    api.start()
    theirs.close()
    engine = _Engine(ours, streams)
    events, counted = context.Pipe(duplex=False)
    address = listener.getsockname()
    clients = context.Process(target=_read_answers, args=(address, streams, tokens, whole, progress, counted))
    _wait_ready(listener.getsockname())
    listener.close()
    assert api.pid is not None
    before = _cpu_seconds(api.pid)
    clients.start()
    ids = engine.admit(streams)
    begin, began = _cpu_seconds(api.pid), time.monotonic()
    for first in range(0, tokens, together):
        end = min(first + together, tokens)
        engine.decode([text[number % len(text)] for number in range(first, end)], ids, last=end == tokens)
        time.sleep(max(0.0, began + end * step_seconds - time.monotonic()))
    clients.join()
    spent = _cpu_seconds(api.pid) - begin
    os.kill(api.pid, signal.SIGTERM)
    api.join()
    return Cost((begin - before) / streams, spent / (streams * tokens), events.recv() / (streams * tokens))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--tokens", type=int, default=100, help="of each stream")
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument("--step-ms", type=float, default=None, help="between two steps (default: 0.25 for each stream)")
    pace.add_argument("--rate", type=float, help="tokens/s of all streams together")
    pace.add_argument("--saturated", action="store_true", help="as fast as the API process reads")
    parser.add_argument("--together", type=int, default=1, help="steps that are sent at once")
    parser.add_argument("--whole", action="store_true", help="answers are not streamed")
    parser.add_argument("--progress", action="store_true", help="answers come in progress frames")
    parser.add_argument(
        "--server", type=shlex.split, default=[], metavar="FLAGS", help="flags of inflight-engine serve"
    )
    parser.add_argument(
        "--bodies", nargs="*", choices=api_gaps.BODIES, metavar="NAME", help=f"all, or some of {[*api_gaps.BODIES]}"
    )
    parser.add_argument("--tries", type=int, default=3, help="of each body")
    flags = parser.parse_args()
    print(cpu_model())
    if flags.bodies is not None:
        sys.exit(bool(_print_gaps(flags.bodies or [*api_gaps.BODIES], flags.tries)))
    print(f"{'streams':>8}{'us of CPU a request':>22}{'a token':>10}{'tokens/s of a core':>20}{'events a token':>18}")
    for streams in flags.streams:
        step = _step_seconds(flags, streams)
        cost = measure(
            streams,
            flags.tokens,
            step,
            together=flags.together,
            whole=flags.whole,
            progress=flags.progress,
            server=flags.server,
        )
        print(
            f"{streams:>8}{cost.request * 1e6:>22.0f}{cost.token * 1e6:>10.1f}{1 / cost.token:>20,.0f}"
            f"{cost.events:>18.2f}"
        )


def _print_gaps(names: Sequence[str], tries: int) -> list[str]:
    """Prints the longest gap beside each body; returns those beside which the goal was not held."""
    print(f"{'beside a body of':<18}{'longest gap, ms':>16}{'status':>8}{'seconds':>9}")
    over: list[str] = []

    def say(name: str, gap: api_gaps.Gap) -> None:
        print(f"{name:<18}{1e3 * gap.longest:>16.0f}{gap.status:>8}{gap.took:>9.2f}", flush=True)
        if gap.longest >= api_gaps.GOAL_SECONDS:
            over.append(name)

    api_gaps.measure(names, tries, say)
    print(f"Goal: below {1e3 * api_gaps.GOAL_SECONDS:.0f} ms; not held: {', '.join(over) or 'none'}.")
    return over


def _step_seconds(flags: argparse.Namespace, streams: int) -> float:
    if flags.saturated:
        return 0.0
    if flags.rate:
        return float(streams / flags.rate)
    return (max(20.0, 0.25 * streams) if flags.step_ms is None else float(flags.step_ms)) / 1e3


if __name__ == "__main__":
    main()
