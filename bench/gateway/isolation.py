"""Isolation of tenants on a real engine: the latency of a tenant with a modest load, alone and beside one that floods.

- `direct`: straight to the engine, which has one queue for all.
- `gateway`: through the gateway, two tenants with equal weights.
- `fair engine`: likewise, and the engine runs the policy `fair` with signed tenants.
- `limited`: through the gateway, and `concurrentRequests` allows the flooding tenant one request in flight.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from bench.gateway.keys import SECRET, bearer, new_key, secret
from bench.gateway.stack import gateway
from bench.served import served_engine
from inflight_gateway.tenants.signature import tenant_key
from inflight_gateway.types import ServiceKey

SERVICE = "bench"
STEADY, FLOODING = "steady", "flooding"
STEADY_PER_S = 0.5
FLOOD_FACTOR = 20
PROMPT_TOKENS = 64
OUTPUT_TOKENS = 24
FLOOD_LEAD_SECONDS = 5.0
"""The flood begins so much earlier."""
ENGINE_FLAGS = (
    "--quantization=int8",
    "--num-threads=1",
    "--max-num-seqs=8",
    "--max-num-batched-tokens=256",
    "--max-model-len=512",
    "--num-kv-blocks=512",
    "--max-queued-requests=64",
)
_MAX_NUM_SEQS = 8
_FIRST_TOKEN_ID, _LAST_TOKEN_ID = 1000, 49_000
_GATEWAY_KEY = "benchmark"


@dataclass(frozen=True, slots=True)
class Arm:
    """One set-up. Attributes: gateway: else straight to the engine. flags: of the engine, besides `ENGINE_FLAGS`.
    flooding: limits of the flooding tenant. signed: the engine is told tenants."""

    gateway: bool = True
    flags: tuple[str, ...] = ()
    flooding: dict[str, int] | None = None
    signed: bool = False


ARMS = {
    "direct": Arm(gateway=False),
    "gateway": Arm(),
    "fair engine": Arm(flags=("--scheduling-policy=fair",), signed=True),
    "limited": Arm(flooding={"concurrent_requests": 1}),
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
class _Target:
    session: aiohttp.ClientSession
    url: str
    keys: dict[str, str]

    async def generate(self, tenant: str, seed: int) -> tuple[float, float] | None:
        """Seconds to the first token and to the end; None: it was not answered."""
        rng = random.Random(f"{tenant} {seed}")
        body = {
            "model": "smollm2",
            "prompt": [rng.randrange(_FIRST_TOKEN_ID, _LAST_TOKEN_ID) for _ in range(PROMPT_TOKENS)],
            "max_tokens": OUTPUT_TOKENS,
            "ignore_eos": True,
            "stream": True,
        }
        headers = {"Host": SERVICE, **bearer(self.keys[tenant])}
        sent, first, text = time.monotonic(), None, b""
        async with self.session.post(f"{self.url}/v1/completions", json=body, headers=headers) as answer:
            async for chunk in answer.content.iter_any():
                first = first or time.monotonic()
                text = (text + chunk)[-200:]
        if answer.status != 200 or first is None or not text.rstrip().endswith(b"data: [DONE]"):
            return None
        return first - sent, time.monotonic() - sent


def measure(folder: Path, seconds: float, arms: Sequence[str], say: Callable[[str], None]) -> list[Isolated]:
    """Each arm with a fresh engine; the steady tenant sends for so many seconds alone, then beside the flood.

    Raises:
        RuntimeError: an engine or the gateway did not start.
    """
    found = []
    for number, name in enumerate(arms):
        place = folder / str(number)
        place.mkdir(parents=True)
        with ExitStack() as stack:
            url, keys = _start(stack, place, ARMS[name])
            for flooded in (False, True):
                say(f"{name}, {'beside a flood' if flooded else 'alone'}: {seconds:.0f} s")
                found.append(asyncio.run(_run(name, url, keys, seconds, flooded)))
    return found


def _start(stack: ExitStack, folder: Path, arm: Arm) -> tuple[str, dict[str, str]]:
    keys = {STEADY: new_key(), FLOODING: new_key()}
    flags = [*ENGINE_FLAGS, *arm.flags]
    gateway_key, engine_key = folder / "gateway-key", folder / "tenant-key"
    gateway_key.write_text(_GATEWAY_KEY)
    if arm.signed:
        uid = f"default/{SERVICE}"
        engine_key.write_bytes(tenant_key(_GATEWAY_KEY.encode(), ServiceKey("default", SERVICE), uid))
        flags.append(f"--tenant-key-file={engine_key}")
    url = stack.enter_context(served_engine(folder / "engine.log", *flags))
    if not arm.gateway:
        return url, keys
    service: dict[str, Any] = {
        "name": SERVICE,
        "model": "smollm2",
        "endpoints": [url.removeprefix("http://")],
        "max_num_seqs": _MAX_NUM_SEQS,
        "api_keys_secret": SECRET,
        "tenants": [{"name": STEADY}, {"name": FLOODING, "limits": arm.flooding or {}}],
    }
    secrets = [secret({key: tenant for tenant, key in keys.items()})]
    running = stack.enter_context(
        gateway(folder / "gateway", [service], secrets, key_file=gateway_key if arm.signed else None)
    )
    return f"http://127.0.0.1:{running.port}", keys


async def _run(arm: str, url: str, keys: dict[str, str], seconds: float, flooded: bool) -> Isolated:
    timeout = aiohttp.ClientTimeout(total=None, sock_read=300)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        target = _Target(session, url, keys)
        for number in range(3):
            await target.generate(STEADY, -number)
        answered: list[float] = []
        flood = asyncio.create_task(_flood(target, answered)) if flooded else None
        await asyncio.sleep(FLOOD_LEAD_SECONDS)
        times = await _steady(target, seconds)
        if flood is not None:
            flood.cancel()
            with suppress(asyncio.CancelledError):
                await flood
    done = [each for each in times if each is not None]
    ttft, latency = sorted(each[0] for each in done), sorted(each[1] for each in done)
    return Isolated(
        arm=arm,
        flooded=flooded,
        requests=len(times),
        failed=len(times) - len(done),
        ttft_p50=_quantile(ttft, 0.5),
        ttft_p95=_quantile(ttft, 0.95),
        latency_p50=_quantile(latency, 0.5),
        latency_p95=_quantile(latency, 0.95),
        others_per_s=len(answered) / (answered[-1] - answered[0]) if len(answered) > 1 else 0.0,
    )


async def _steady(target: _Target, seconds: float) -> list[tuple[float, float] | None]:
    """Poisson arrivals, the same in each run."""
    rng, began, at = random.Random(1), time.monotonic(), 0.0
    tasks: list[asyncio.Task[tuple[float, float] | None]] = []
    while (at := at + rng.expovariate(STEADY_PER_S)) < seconds:
        await asyncio.sleep(began + at - time.monotonic())
        tasks.append(asyncio.create_task(target.generate(STEADY, len(tasks))))
    return await asyncio.gather(*tasks)


async def _flood(target: _Target, answered: list[float]) -> None:
    """Until cancelled; its requests end with it."""

    async def one(number: int) -> None:
        if await target.generate(FLOODING, number) is not None:
            answered.append(time.monotonic())

    rng, number = random.Random(2), 0
    async with asyncio.TaskGroup() as tasks:
        while True:
            tasks.create_task(one(number))
            number += 1
            await asyncio.sleep(rng.expovariate(STEADY_PER_S * FLOOD_FACTOR))


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[int(share * (len(ordered) - 1))] if ordered else float("nan")
