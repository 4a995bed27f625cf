"""The picker's HTTP route for limit calls of other gateways, and its client."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import aiohttp
from aiohttp import web

from inflight_base.signing import PEER_SIGNATURE
from inflight_gateway.tenants import wire
from inflight_gateway.tenants.gateway_key import GatewayKey
from inflight_gateway.tenants.sharing import SharedLimits

Handler = Callable[[web.Request], Awaitable[web.Response]]


def limits_handler(limits: SharedLimits, key: GatewayKey) -> Handler:
    """Makes the handler of `POST /v1/limits/take` (`wire.PATH`).

    401: the signature is missing, wrong or too old, or there is no gateway key; 400: the message is invalid.
    """

    async def handle(request: web.Request) -> web.Response:
        if (request.content_length or 0) > wire.MAX_BYTES:
            return web.Response(status=413, text="the message is too long\n")
        value = request.headers.get(PEER_SIGNATURE, "")
        content = await request.read() if value and key.keys else b""
        if not key.signed(wire.to_sign(content), value, wire.MAX_AGE_S):
            said = "the call is not signed with this installation's gateway key within the last 30 s\n"
            return web.Response(status=401, text=said)
        try:
            batch = wire.batch(content)
        except ValueError as error:
            return web.Response(status=400, text=f"{error}\n")
        answer = wire.encoded(limits.answer(batch, time.monotonic()))
        return web.Response(body=answer, content_type="application/json")

    return handle


class PeerClient:
    """Calls other gateways; `post` is the `Post` of `SharedLimits`. Args: key: `post` is not called without one."""

    def __init__(self, key: GatewayKey) -> None:
        self._key = key
        self._session: aiohttp.ClientSession | None = None

    async def post(self, address: str, content: bytes) -> bytes:
        """Sends a signed call and returns the body of the response.

        Raises:
            OSError, TimeoutError: no response. ValueError: a status other than 200.
        """
        if self._session is None:
            self._session = aiohttp.ClientSession()
        headers = {PEER_SIGNATURE: self._key.sign(wire.to_sign(content)), "content-type": "application/json"}
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
