"""Prefill and decode apart on real replicas: the same ones behind the gateway as one set of mixed replicas, and as two
sets with `spec.disaggregation` Fixed and Auto.

Each replica has a share of the CPU of its own. All arms get the same requests, whose prompts share nothing. Limits are
those that fit an arm: a mixed replica computes prompts in pieces beside its answers, with two sizes of pieces, each an
arm; in two sets one computes prompts in large pieces, and the other has few of them.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from inflight_kubectl.load.client import Client
from tools.bench.autopilot.traffic import Answer, Sender, Shape, Slice, trace_slice
from tools.bench.gateway.stack import gateways
from tools.measure.cpu_share import cpu_group
from tools.measure.report import percentile
from tools.measure.report import table as aligned
from tools.measure.served import free_port, served_engine

SHAPES = (
    Shape("long", prompt=1 / 2, output=1 / 6, first=100),
    Shape("short", prompt=1 / 16, output=1 / 3, first=100),
)
RATES = (1.0, 4.0)
"""Requests a second of these shapes: four replicas with 0.4 of a core of an AMD EPYC with AVX512 each keep most."""
_SECONDS = 40.0
_TTFT_S, _TPOT_S = 2.5, 0.08
_REPLICAS = 4
_SERVICE = "bench"
_TOKEN = "bench"
_MOST_PROMPT = 1000
_PATIENCE_S = 60.0
_SEQS = 16
_FLAGS = (
    f"--quantization=int8 --num-threads=1 --max-num-seqs={_SEQS} --max-num-batched-tokens=512 --max-model-len=4096 "
    "--num-kv-blocks=1500 --swap-space=512Mi --max-queued-requests=1000"
)


@dataclass(frozen=True, slots=True)
class Arm:
    """A way to use the replicas.

    Attributes:
        apart: mode of `spec.disaggregation`.
        prefill: replicas of the prefill set.
        budgets: `max_num_batched_tokens` of the prefill set and of the replicas that answer.
    """

    name: str
    apart: str
    prefill: int
    budgets: tuple[int, int]


ARMS = (
    Arm("mixed, 64 tokens a step", "Off", 0, (64, 64)),
    Arm("mixed, 256 tokens a step", "Off", 0, (256, 256)),
    Arm("Fixed, 2 and 2", "Fixed", 2, (512, 64)),
    Arm("Auto, 2 and 2", "Auto", 2, (256, 256)),
)


@dataclass(frozen=True, slots=True)
class Row:
    """Results of an arm with one shape of requests.

    Attributes:
        kept: share of the requests in both targets. ttft, tpot: p50 and p95, in seconds.
        handed_over: share of the requests that began at a replica of the prefill set.
    """

    shape: str
    arm: str
    rate: float
    kept: float
    ttft: tuple[float, float]
    tpot: tuple[float, float]
    handed_over: float


@dataclass(frozen=True, slots=True)
class _Replica:
    url: str
    admin: str


def loads(rates: Sequence[float]) -> dict[str, Slice]:
    """Requests of the trace, by the name of their shape. Args: rates: requests a second of each; 0: without it."""
    return {
        shape.name: trace_slice(shape, max(1, round(rate * _SECONDS)), _SECONDS, _MOST_PROMPT)
        for shape, rate in zip(SHAPES, rates, strict=True)
        if rate
    }


def measure(
    folder: Path, load: Mapping[str, Slice], say: Callable[[str], None], *, cores: float, rounds: int
) -> list[Row]:
    """Start the replicas, and send each load by each arm, in turns: forwards, then backwards.

    Args:
        cores: CPU time that each replica gets.

    Raises:
        RuntimeError: an engine or the gateway did not start, or cannot be reached.
    """
    folder.mkdir()
    rows = []
    with _replicas(folder, _REPLICAS, cores) as running:
        for number in range(rounds):
            for place, arm in enumerate(ARMS[:: -1 if number % 2 else 1]):
                for shape, jobs in load.items():
                    each = _run(folder / f"{number}-{place}-{shape}", running, arm, shape, jobs)
                    rows.append(each)
                    say(
                        f"{shape}, {arm.name}: {each.kept:.1%} in target, TTFT p95 {each.ttft[1]:.2f} s,"
                        f" TPOT p95 {1e3 * each.tpot[1]:.0f} ms, {each.handed_over:.0%} handed over"
                    )
    return rows


@contextmanager
def _replicas(folder: Path, count: int, cores: float) -> Iterator[list[_Replica]]:
    with ExitStack() as stack:
        found = []
        for number in range(count):
            group = stack.enter_context(cpu_group(f"bench-apart-{number}"))
            port, host = free_port(), f"127.0.0.{number + 2}"
            environment = {"INFLIGHT_ADMIN_TOKEN": _TOKEN, "INFLIGHT_POD_UID": f"replica-{number}"}
            flags = [*_FLAGS.split(), f"--admin-port={port}"]
            log = folder / f"replica-{number}.log"
            url = stack.enter_context(
                served_engine(log, *flags, environment=environment, group=group, host=host),
            )
            group.limit(cores)
            found.append(_Replica(url, f"http://{host}:{port}"))
        yield found


def _run(folder: Path, replicas: Sequence[_Replica], arm: Arm, shape: str, jobs: Slice) -> Row:
    endpoints = []
    for number, replica in enumerate(replicas):
        prefill = number < arm.prefill
        _set_budget(replica, arm.budgets[0 if prefill else 1])
        endpoints.append({"address": replica.url.removeprefix("http://"), "pod": str(number), "prefill": prefill})
    service = {"name": _SERVICE, "model": "smollm2", "endpoints": endpoints, "max_num_seqs": _SEQS}
    service |= {"ttft_s": _TTFT_S, "tpot_s": _TPOT_S, "apart": arm.apart}
    with gateways(folder, [service], flags=["--model-namespace", "default"]) as running:
        answers = asyncio.run(_send(f"http://127.0.0.1:{running.pods[0].port}", jobs, str(folder)))
        handed_over = _handed_over(f"http://127.0.0.1:{running.pods[0].http_port}/metrics")
    ttfts = [each.ttft if each.ttft is not None else _PATIENCE_S for each in answers]
    tpots = [each.tpot if each.whole and each.tpot is not None else _PATIENCE_S for each in answers]
    kept = sum(
        each.whole and ttft <= _TTFT_S and (each.tpot is None or each.tpot <= _TPOT_S)
        for each, ttft in zip(answers, ttfts, strict=True)
    )
    return Row(
        shape,
        arm.name,
        jobs.rate,
        kept / len(answers),
        (percentile(ttfts, 0.5), percentile(ttfts, 0.95)),
        (percentile(tpots, 0.5), percentile(tpots, 0.95)),
        handed_over / len(answers),
    )


async def _send(url: str, jobs: Slice, seed: str) -> list[Answer]:
    async with Client(url) as client:
        sender = Sender(client, seed=crc32(seed.encode()), headers={"Host": f"{_SERVICE}.default"})
        return await sender.send(jobs.jobs, time.monotonic(), _PATIENCE_S)


def _set_budget(replica: _Replica, tokens: int) -> None:
    request = urllib.request.Request(
        f"{replica.admin}/v1/runtime_config",
        json.dumps({"max_num_batched_tokens": tokens}).encode(),
        {"authorization": f"Bearer {_TOKEN}", "content-type": "application/json"},
        method="PATCH",
    )
    urllib.request.urlopen(request, timeout=10).close()


def _handed_over(url: str) -> float:
    """Returns the requests that an engine of the prefill set began."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        page = answer.read().decode()
    return sum(
        float(count)
        for count in re.findall(r'^inflight_gateway_picks_total\{.*reason="prefill".*\} (\S+)$', page, re.M)
    )


def table(rows: Sequence[Row]) -> list[str]:
    """Lines for a terminal."""
    lines = [["load", "arm", "in target", "TTFT p50, s", "p95", "TPOT p50, ms", "p95", "handed over"]]
    for row in rows:
        figures = [
            f"{row.kept:.1%}",
            *(f"{each:.2f}" for each in row.ttft),
            *(f"{1e3 * each:.0f}" for each in row.tpot),
        ]
        lines.append([f"{row.shape}, {row.rate:.2f}/s", row.arm, *figures, f"{row.handed_over:.0%}"])
    return ["", *aligned(lines, "<<>")]
