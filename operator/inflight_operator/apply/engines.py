"""Applies limits to running engines: PATCH /v1/runtime_config, outside of rounds, which never wait on a pod."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict

import aiohttp

from inflight_base.manifest.keys import ServiceKey
from inflight_contract.admin_signature import PROOF_HEADER, authorization, is_proof, signature
from inflight_operator.clock import Clock
from inflight_operator.observe.pods import LimitsPush, PodView
from inflight_settings.limits import LimitsInForce

logger = logging.getLogger(__name__)

PATH = "/v1/runtime_config"
MAX_ANSWER_BYTES = 64 * 1024


class EngineError(Exception):
    """An engine did not accept its limits; the message names the engine and the reason."""


class EngineClient:
    """Client of the engines' admin API.

    Args:
        http: must not follow the environment's proxies: pods are reached directly.
        timeout: seconds for one call; an engine answers between two steps, which on a slow CPU are seconds apart.
    """

    def __init__(self, http: aiohttp.ClientSession, timeout: float = 10.0) -> None:
        self._http = http
        self._timeout = aiohttp.ClientTimeout(total=timeout)

    async def set_limits(self, pod: PodView, token: str, limits: LimitsInForce) -> None:
        """Sets both limits on one engine. Sending the same revision twice is harmless.

        Raises:
            EngineError: no response, a status other than 200, or a response from another pod.
        """
        if pod.admin_port is None:
            raise EngineError(f"{pod.name} runs an engine release without an admin port")
        content = {**asdict(limits.limits), "revision": limits.revision}
        key, body, moment = token.encode(), json.dumps(content).encode(), str(int(time.time()))
        signed = signature(key, "PATCH", PATH, pod.uid, moment, body)
        headers = {
            "Authorization": authorization(pod.uid, moment, signed),
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
        }
        try:
            async with self._http.patch(
                pod.url(pod.admin_port) + PATH,
                data=body,
                headers=headers,
                timeout=self._timeout,
                allow_redirects=False,
                auto_decompress=False,
            ) as response:
                status, proof = response.status, response.headers.get(PROOF_HEADER, "")
                text = (await response.content.read(MAX_ANSWER_BYTES)).decode(errors="replace")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise EngineError(f"{pod.name} did not take its limits: {str(error) or type(error).__name__}") from error
        if status != 200:
            raise EngineError(f"{pod.name} did not take its limits: HTTP {status} {text[:300]}")
        if not is_proof(key, signed, proof):
            raise EngineError(f"{pod.name} did not take its limits: the answer does not prove that it is this pod's")


class LimitsPusher:
    """Applies limits to engines, one call to a pod at a time.

    Args:
        may_write: whether this process is still the leader; called before each request.
        pause: seconds between two attempts at a pod that does not accept its limits.
        concurrency: maximum calls in flight, over all services.
    """

    def __init__(
        self,
        engines: EngineClient,
        clock: Clock,
        may_write: Callable[[], bool],
        pause: float = 5.0,
        concurrency: int = 64,
    ) -> None:
        self._may_write = may_write
        self._clock = clock
        self._engines = engines
        self._pause = pause
        self._slots = asyncio.Semaphore(concurrency)
        self._pushes: dict[ServiceKey, dict[str, LimitsPush]] = {}
        self._kept: dict[ServiceKey, frozenset[str]] = {}
        self._calls: dict[str, asyncio.Task[None]] = {}

    def pushes(self, key: ServiceKey) -> Mapping[str, LimitsPush]:
        """By pod uid, for the pods of one service with at least one call."""
        return dict(self._pushes.get(key, {}))

    def keep(self, key: ServiceKey, uids: Collection[str]) -> None:
        """Forgets all pods of a service but these."""
        self._kept[key] = frozenset(uids)
        known = self._pushes.get(key, {})
        for uid in [uid for uid in known if uid not in uids]:
            del known[uid]
        if not uids:
            self._kept.pop(key, None)
            self._pushes.pop(key, None)

    def push(self, key: ServiceKey, pod: PodView, token: str, limits: LimitsInForce) -> None:
        """Starts to apply `limits` to one engine, unless a call is in flight or just failed; returns at once."""
        before = self._pushes.get(key, {}).get(pod.uid, LimitsPush())
        if pod.uid in self._calls or self._clock.steady() < before.retry_at:
            return
        task = asyncio.create_task(self._call(key, pod, token, limits), name=f"limits of {pod.name}")
        self._calls[pod.uid] = task
        task.add_done_callback(lambda _: self._calls.pop(pod.uid, None))

    async def idle(self) -> None:
        """Returns when no call is in flight."""
        while self._calls:
            await asyncio.wait(list(self._calls.values()))

    async def close(self) -> None:
        """Cancels all calls; applied limits stay."""
        calls = list(self._calls.values())
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    async def _call(self, key: ServiceKey, pod: PodView, token: str, limits: LimitsInForce) -> None:
        before = self._pushes.get(key, {}).get(pod.uid, LimitsPush())
        try:
            async with self._slots:
                if not self._may_write():
                    return
                await self._engines.set_limits(pod, token, limits)
        except EngineError as error:
            if str(error) != before.error:
                logger.warning("%s: %s", key, error)
            again = self._clock.steady() + self._pause
            result = LimitsPush(before.accepted, before.at, str(error), again)
        else:
            result = LimitsPush(limits, self._clock.steady())
        if pod.uid in self._kept.get(key, ()):  # else the pod was removed meanwhile
            self._pushes.setdefault(key, {})[pod.uid] = result
