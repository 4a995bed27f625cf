"""Telling running engines their limits: PATCH /v1/runtime_config."""

from __future__ import annotations

import httpx

from inflight_operator.observe.pods import PodView
from inflight_operator.observe.scrape import base_url
from inflight_operator.render import LimitsInForce


class EngineError(Exception):
    """An engine did not take its limits; the message says which and why."""


class EngineClient:
    """The engines' admin API.

    Args:
        client: shared with the scraper.
        timeout: seconds for one call; an engine answers between two steps, which on a slow CPU are seconds apart.
    """

    def __init__(self, client: httpx.AsyncClient, timeout: float = 10.0) -> None:
        self._client = client
        self._timeout = timeout

    async def set_limits(self, pod: PodView, port: int, token: str, limits: LimitsInForce) -> None:
        """Sets both limits on one engine. Sent twice, the same revision is harmless.

        Raises:
            EngineError: no answer, or another one than 200.
        """
        body = {
            "max_num_seqs": limits.max_num_seqs,
            "max_num_batched_tokens": limits.max_num_batched_tokens,
            "revision": limits.revision,
        }
        try:
            response = await self._client.patch(
                f"{base_url(pod, port)}/v1/runtime_config",
                json=body,
                headers={"Authorization": f"Bearer {token}"},
                timeout=self._timeout,
            )
        except httpx.HTTPError as error:
            raise EngineError(f"{pod.name} did not take its limits: {str(error) or type(error).__name__}") from error
        if response.status_code != 200:
            raise EngineError(f"{pod.name} did not take its limits: HTTP {response.status_code} {response.text[:300]}")
