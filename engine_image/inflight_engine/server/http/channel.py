"""/inflight/channel: a relay opens a connection for the events of its streams."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from inflight_contract.channels import CHANNEL_HEADER, CHANNEL_PATH
from inflight_engine.server.answers.channels import Channel
from inflight_engine.server.http.middleware import request_id
from inflight_engine.server.service import ServiceOf

router = APIRouter()


@router.post(CHANNEL_PATH, include_in_schema=False)
async def channel(service: ServiceOf, http: Request) -> Response:
    """A channel, for whoever may send requests."""
    service.tenants.of(http.headers, request_id(http.scope))
    return _ChannelResponse(service.channels.open(http.headers.get(CHANNEL_HEADER, "")))


class _ChannelResponse(Response):
    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._channel(scope, receive, send)
