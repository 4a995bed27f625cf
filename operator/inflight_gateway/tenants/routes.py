"""The picker's HTTP route for limit calls of other gateways, and its client."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import aiohttp
from aiohttp import web

from inflight_gateway.tenants import wire
from inflight_gateway.tenants.sharing import SharedLimits

Handler = Callable[[web.Request], Awaitable[web.Response]]


def limits_handler(limits: SharedLimits, gateway_key: bytes | None) -> Handler:
    """Makes the handler of `POST /v1/limits/take` (`wire.PATH`).

    401: the signature is wrong, or there is no gateway key; 408: the message is too old; 400: the message is invalid.
    """

    async def handle(request: web.Request) -> web.Response:
        if (request.content_length or 0) > wire.MAX_BYTES:
            return web.Response(status=413, text="the message is too long\n")
        content = await request.read()
        if gateway_key is None or not wire.signed(gateway_key, content, request.headers.get(wire.SIGNATURE, "")):
            return web.Response(status=401, text="the signature is not of this installation's gateway key\n")
        try:
            batch = wire.batch(content)
        except ValueError as error:
            return web.Response(status=400, text=f"{error}\n")
        if abs(time.time() - batch.at) > wire.MAX_AGE_S:
            return web.Response(status=408, text="the message is too old: do the nodes' clocks differ?\n")
        answer = wire.encoded(limits.answer(batch, time.monotonic()))
        return web.Response(body=answer, content_type="application/json")

    return handle


class PeerClient:
    """Calls other gateways; `post` is the `Post` of `SharedLimits`."""

    def __init__(self, gateway_key: bytes) -> None:
        self._gateway_key = gateway_key
        self._session: aiohttp.ClientSession | None = None

    def use(self, gateway_key: bytes) -> None:
        """Sets the key."""
        self._gateway_key = gateway_key

    async def post(self, address: str, content: bytes) -> bytes:
        """Sends a signed call and returns the body of the response.

        Raises:
            OSError, TimeoutError: no response. ValueError: a status other than 200.
        """
        if self._session is None:
            self._session = aiohttp.ClientSession()
        headers = {wire.SIGNATURE: wire.signature(self._gateway_key, content), "content-type": "application/json"}
        try:
            async with self._session.post(f"http://{address}{wire.PATH}", data=content, headers=headers) as response:
                body = await response.read()
                if response.status != 200:
                    raise ValueError(f"{response.status} {body[:200].decode(errors='replace').strip()}")
                return body
        except aiohttp.ClientError as error:
            raise ConnectionError(str(error) or type(error).__name__) from error

    async def close(self) -> None:
        """Closes all connections."""
        if self._session is not None:
            await self._session.close()
