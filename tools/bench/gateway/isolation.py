"""Isolation of tenants on a real engine: the latency of a tenant with a modest load, alone and beside one that floods.

- `direct`: straight to the engine, which has one queue for all.
- `fair share`: straight to the engine, which runs the policy `fair`: shares by tokens, no slots kept free.
- `gateway`: through the gateway, two tenants with equal weights: shares by tokens, and slots kept free of the tenant
  that floods.
- `fair engine`: likewise, and the engine runs the policy `fair` with signed tenants.
- `limited`: through the gateway, and `concurrentRequests` allows the flooding tenant one request in flight.
- `GPU direct`, `GPU fair share`, `GPU`: as `direct`, `fair share` and `gateway`, to an engine without a model whose
  steps take as long as a GPU's (tools/standin/timed.py).

- `GPU 48`, `GPU 200`: as `GPU`, where the flood is so many clients that send one request after the other.

Through a gateway of several pods, the tenants connect to different ones: in one round the flood comes in at the pod
that owns the service, in the next round the other tenant.

Alone is the same tenant with the same arrivals on the same set-up without the other. On a CPU, requests that run side
by side share its arithmetic, and the difference to alone is mostly that; on a GPU a larger batch hardly slows a step,
and the difference is what queues add.
"""

from __future__ import annotations

import asyncio
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inflight_base.manifest.keys import ServiceKey
from inflight_base.signing import tenant_key
from inflight_gateway.request.headers import TENANT
from inflight_kubectl.load.answers import Answer, AnswerError
from inflight_kubectl.load.client import Client, DisconnectedError
from tools.bench.gateway.stack import GATEWAY_KEY, SECRET, bearer, gateways, new_key, secret
from tools.measure import report
from tools.measure.report import percentile
from tools.measure.served import free_port, process, served_engine, wait_ready

SERVICE = "bench"
STEADY, FLOODING = "steady", "flooding"
STEADY_PER_S = 0.5
"""Requests a second of the steady tenant: at this load alone a slot is nearly always free. The flood asks for more than
twice what the engine can do."""
EMULATED_STEADY_PER_S = 1.0
"""A tenth of what the emulated engine can do, so that the tenant is within its share in nearly all bursts, too."""
ROUNDS = 2
"""Rounds of each arm: alone and beside the flood in turns, so that both see the same machine."""
FLOOD_FACTOR = 20
PROMPT_TOKENS = 64
OUTPUT_TOKENS = 24
FLOOD_LEAD_SECONDS = 5.0
"""Seconds by which the flood begins earlier."""
MAX_NUM_SEQS = 8
ENGINE_FLAGS = (
    "--quantization=int8",
    "--num-threads=1",
    f"--max-num-seqs={MAX_NUM_SEQS}",
    "--max-num-batched-tokens=256",
    "--max-model-len=512",
    "--num-kv-blocks=512",
    "--max-queued-requests=64",
)
_FIRST_TOKEN_ID, _LAST_TOKEN_ID = 1000, 49_000


@dataclass(frozen=True, slots=True)
class Arm:
    """A set-up. Attributes: gateway: through the gateway; else straight to the engine. flags: flags of the engine
    besides `ENGINE_FLAGS`. flooding: limits of the flooding tenant. signed: the gateway sends the engine signed
    tenants. named: the client sends the engine its tenant. emulated: the engine is `tools.standin.timed`. clients: of
    the flood, in a closed loop; 0: it has a rate."""

    gateway: bool = True
    flags: tuple[str, ...] = ()
    flooding: dict[str, int] | None = None
    signed: bool = False
    named: bool = False
    emulated: bool = False
    clients: int = 0


ARMS = {
    "direct": Arm(gateway=False),
    "fair share": Arm(
        gateway=False,
        flags=("--scheduling-policy=fair", "--trust-tenant-header", "--max-queued-requests=10000"),
        named=True,
    ),
    "gateway": Arm(),
    "fair engine": Arm(flags=("--scheduling-policy=fair",), signed=True),
    "limited": Arm(flooding={"concurrent_requests": 1}),
    "GPU direct": Arm(gateway=False, emulated=True),
    "GPU fair share": Arm(gateway=False, named=True, emulated=True),
    "GPU": Arm(emulated=True),
    "GPU 48": Arm(emulated=True, clients=48),
    "GPU 200": Arm(emulated=True, clients=200),
}


@dataclass(frozen=True, slots=True)
class Isolated:
    """The steady tenant's latency. Attributes: seconds, but for: requests: that it sent. failed: of them, those that
    were not answered. others_per_s: answers to the flooding tenant, a second."""

    arm: str
    flooded: bool
    requests: int
    failed: int
    ttft_p50: float
    ttft_p95: float
    latency_p50: float
    latency_p95: float
    others_per_s: float


@dataclass(frozen=True, slots=True)
class _Run:
    """Answers of one run. Attributes: times: of each request of the steady tenant; None: it was not answered."""

    times: list[Answer | None]
    others_per_s: float


@dataclass(frozen=True, slots=True)
class _Target:
    client: Client
    keys: dict[str, str]
    named: bool

    async def generate(self, tenant: str, seed: str) -> Answer | None:
        """Sends a request and reads its answer; None: it was not answered."""
        rng = random.Random(f"{tenant} {seed}")
        body = {
            "model": "smollm2",
            "prompt": [rng.randrange(_FIRST_TOKEN_ID, _LAST_TOKEN_ID) for _ in range(PROMPT_TOKENS)],
            "max_tokens": OUTPUT_TOKENS,
            "ignore_eos": True,
            "stream": True,
        }
        headers = {"Host": f"{SERVICE}.default", **bearer(self.keys[tenant])}
        if self.named:
            headers[TENANT] = tenant
        answer = Answer(time.monotonic())
        try:
            await self.client.ask(body, answer, headers=headers)
        except DisconnectedError:
            raise
        except AnswerError:
            return None
        return answer


def measure(folder: Path, seconds: float, arms: Sequence[str], say: Callable[[str], None], pods: int) -> list[Isolated]:
    """Runs each arm with a fresh engine; the steady tenant sends for so many seconds alone, and as many beside the
    flood.

    Args:
        pods: of the gateway.

    Raises:
        RuntimeError: an engine or the gateway did not start.
    """
    found = []
    for number, name in enumerate(arms):
        place = folder / str(number)
        place.mkdir(parents=True)
        with ExitStack() as stack:
            urls, keys = _start(stack, place, ARMS[name], pods)
            runs: dict[bool, list[_Run]] = {False: [], True: []}
            for turn in range(ROUNDS):
                for flooded, taken in runs.items():
                    say(f"{name}, {'beside a flood' if flooded else 'alone'}: {seconds / ROUNDS:.0f} s")
                    calm, crowded = (urls[0], urls[-1]) if turn % 2 else (urls[-1], urls[0])
                    taken.append(asyncio.run(_run(calm, crowded, keys, ARMS[name], seconds / ROUNDS, turn, flooded)))
            found += [_isolated(name, flooded, taken) for flooded, taken in runs.items()]
    return found


def _start(stack: ExitStack, folder: Path, arm: Arm, pods: int) -> tuple[list[str], dict[str, str]]:
    """Returns the URLs for clients, that of the pod which owns the service first, and the tenants' keys."""
    keys = {STEADY: new_key(), FLOODING: new_key()}
    flags = [*ENGINE_FLAGS, *arm.flags]
    engine_key = folder / "tenant-key"
    if arm.signed:
        uid = f"default/{SERVICE}"
        engine_key.write_text(tenant_key(GATEWAY_KEY.encode(), ServiceKey("default", SERVICE), uid))
        flags.append(f"--tenant-key-file={engine_key}")
    log = folder / "engine.log"
    url = stack.enter_context(_emulated(log) if arm.emulated else served_engine(log, *flags))
    if not arm.gateway:
        return [url], keys
    service: dict[str, Any] = {
        "name": SERVICE,
        "model": "smollm2",
        "endpoints": [url.removeprefix("http://")],
        "max_num_seqs": MAX_NUM_SEQS,
        "api_keys_secret": SECRET,
        "tenants": [{"name": STEADY}, {"name": FLOODING, "limits": arm.flooding or {}}],
    }
    secrets = [secret({key: tenant for tenant, key in keys.items()})]
    running = stack.enter_context(gateways(folder / "gateway", [service], secrets, pods=pods))
    return [f"http://127.0.0.1:{pod.port}" for pod in running.by_owner(SERVICE)], keys


@contextmanager
def _emulated(log: Path) -> Iterator[str]:
    url = f"http://127.0.0.1:{(port := free_port())}"
    with process(log, [sys.executable, "-m", "tools.standin.timed", str(port)]) as running:
        wait_ready(f"{url}/ready", {"the stand-in": (running, log)})
        yield url


async def _run(
    calm: str, crowded: str, keys: dict[str, str], arm: Arm, seconds: float, turn: int, flooded: bool
) -> _Run:
    """Measures the tenant that connects to `calm`, beside the flood at `crowded` if `flooded`."""
    per_s = EMULATED_STEADY_PER_S if arm.emulated else STEADY_PER_S
    async with Client(calm) as client, Client(crowded) as flooding:
        target = _Target(client, keys, arm.named)
        for number in range(3):
            await target.generate(STEADY, f"warm-up {turn} {flooded} {number}")
        answered: list[float] = []
        flood = None
        if flooded:
            send = _Flood(_Target(flooding, keys, arm.named), turn, answered)
            flood = asyncio.create_task(send.closed(arm.clients) if arm.clients else send.at_rate(FLOOD_FACTOR * per_s))
        await asyncio.sleep(FLOOD_LEAD_SECONDS)
        times = await _steady(target, seconds, per_s, f"{turn} {flooded}")
        if flood is not None:
            flood.cancel()
            with suppress(asyncio.CancelledError):
                await flood
    return _Run(times, len(answered) / (answered[-1] - answered[0]) if len(answered) > 1 else 0.0)


def _isolated(arm: str, flooded: bool, runs: Sequence[_Run]) -> Isolated:
    times = [each for run in runs for each in run.times]
    done = [each for each in times if each is not None]
    ttft = [each.ttft for each in done if each.ttft is not None]
    latency = [each.latency for each in done if each.latency is not None]
    return Isolated(
        arm=arm,
        flooded=flooded,
        requests=len(times),
        failed=len(times) - len(done),
        ttft_p50=percentile(ttft, 0.5) if done else math.nan,
        ttft_p95=percentile(ttft, 0.95) if done else math.nan,
        latency_p50=percentile(latency, 0.5) if done else math.nan,
        latency_p95=percentile(latency, 0.95) if done else math.nan,
        others_per_s=sum(run.others_per_s for run in runs) / len(runs),
    )


async def _steady(target: _Target, seconds: float, per_s: float, salt: str) -> list[Answer | None]:
    """Poisson arrivals, the same in each run, of other prompts."""
    rng, began, at = random.Random(1), time.monotonic(), 0.0
    tasks: list[asyncio.Task[Answer | None]] = []
    while (at := at + rng.expovariate(per_s)) < seconds:
        await asyncio.sleep(began + at - time.monotonic())
        tasks.append(asyncio.create_task(target.generate(STEADY, f"{salt} {len(tasks)}")))
    return await asyncio.gather(*tasks)


@dataclass(slots=True)
class _Flood:
    """Requests until cancelled; they end with it. Attributes: answered: when each answer came."""

    target: _Target
    turn: int
    answered: list[float]
    sent: int = 0

    async def at_rate(self, per_s: float) -> None:
        """Poisson arrivals."""
        rng = random.Random(2)
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(self._one())
                await asyncio.sleep(rng.expovariate(per_s))

    async def closed(self, clients: int) -> None:
        """Clients that send one request after the other."""

        async def client() -> None:
            while True:
                await self._one()

        async with asyncio.TaskGroup() as tasks:
            for _ in range(clients):
                tasks.create_task(client())

    async def _one(self) -> None:
        self.sent += 1
        if await self.target.generate(FLOODING, f"{self.turn} {self.sent}") is not None:
            self.answered.append(time.monotonic())


def table(found: Sequence[Isolated]) -> list[str]:
    """Lines for a terminal. The columns `x` are the quotient to the same arm alone."""
    names = ("ttft_p50", "ttft_p95", "latency_p50", "latency_p95")
    heads = [head for name in names for head in (f"{name.replace('_', ' ').replace('ttft', 'TTFT')} s", "x")]
    rows, alone = [["arm", "flood", "requests", "failed", *heads, "others/s"]], dict[str, Isolated]()
    for row in found:
        if not row.flooded:
            alone[row.arm] = row
        values = [(getattr(row, name), getattr(alone.get(row.arm, row), name)) for name in names]
        figures = [cell for value, base in values for cell in (f"{value:.3f}", f"{value / base:.2f}")]
        flood = "yes" if row.flooded else "no"
        rows.append([row.arm, flood, str(row.requests), str(row.failed), *figures, f"{row.others_per_s:.2f}"])
    return ["", *report.table(rows, "<>")]
