"""Scraping engines: each pod on its own with a short timeout, so that a slow one delays nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from time import monotonic

import httpx

from inflight_operator.observe.metrics import MetricsError, Sample, parse_metrics
from inflight_operator.observe.pods import PodView


@dataclass(frozen=True, slots=True)
class Scrape:
    """The outcome for one pod: a sample, or the sentence that says why there is none."""

    uid: str
    sample: Sample | None
    error: str = ""


class Scraper:
    """GETs /metrics of pods.

    Args:
        client: shared by all services; its connections are kept alive.
        timeout: seconds for one pod, from request to last byte.
        concurrency: most scrapes under way at once, over all services.
    """

    def __init__(self, client: httpx.AsyncClient, timeout: float = 2.0, concurrency: int = 256) -> None:
        self._client = client
        self._timeout = timeout
        self._slots = asyncio.Semaphore(concurrency)

    async def scrape(self, pods: Iterable[PodView], port: int) -> list[Scrape]:
        """One outcome for each pod, in the order given; takes `timeout` at most once a slot is free."""
        return list(await asyncio.gather(*(self._scrape_one(pod, port) for pod in pods)))

    async def _scrape_one(self, pod: PodView, port: int) -> Scrape:
        async with self._slots:
            try:
                async with asyncio.timeout(self._timeout):
                    response = await self._client.get(f"{base_url(pod, port)}/metrics")
                response.raise_for_status()
                return Scrape(pod.uid, parse_metrics(response.text, monotonic()))
            except TimeoutError:
                return Scrape(pod.uid, None, f"{pod.name} did not answer /metrics within {self._timeout:g} s")
            except (httpx.HTTPError, MetricsError) as error:
                return Scrape(pod.uid, None, f"{pod.name}: /metrics: {str(error) or type(error).__name__}")


def base_url(pod: PodView, port: int) -> str:
    """`http://IP:PORT` of a pod, with brackets around an IPv6 address."""
    return f"http://[{pod.ip}]:{port}" if ":" in pod.ip else f"http://{pod.ip}:{port}"
