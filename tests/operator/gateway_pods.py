"""Gateway pods for tests: servers of the state stream, which say what a test has them say."""

import asyncio
import json
from contextlib import asynccontextmanager

from aiohttp import web


def said(name, *, namespace="team", held=0, tokens=0, oldest=0.0, in_flight=0, idle=None, **demand):
    """Returns the report of a service. Args: demand: counters by class; none: of a gateway of an earlier release."""
    return {
        "namespace": namespace,
        "name": name,
        "held": held,
        "held_prompt_tokens": tokens,
        "oldest_held_s": oldest,
        "in_flight": in_flight,
        "idle_s": idle,
        **({"demand": demand} if demand else {}),
    }


class GatewayPodServer:
    """Attributes:
    port: of the server, once it runs.
    streams: of the clients that are connected.
    """

    def __init__(self):
        self.first = b""
        self.streams = []
        self.port = 0
        self.status = 200

    def begins_with(self, *services):
        self.first = line(True, services)

    async def says(self, *services, full=False):
        await self.sends(line(full, services))

    async def sends(self, data):
        for stream in self.streams:
            await stream.write(data)

    async def hangs_up(self):
        for stream in self.streams:
            stream.transport.abort()
        self.streams.clear()

    async def _state(self, request):
        assert request.query["watch"] == "1"
        if self.status != 200:
            return web.Response(status=self.status)
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(self.first)
        response.transport = request.transport
        self.streams.append(response)
        await asyncio.sleep(600)
        return response


@asynccontextmanager
async def gateway_pod():
    pod = GatewayPodServer()
    app = web.Application()
    app.router.add_get("/v1/state", pod._state)
    runner = web.AppRunner(app, shutdown_timeout=0.01)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    pod.port = runner.addresses[0][1]
    try:
        yield pod
    finally:
        await runner.cleanup()


def line(full, services):
    return json.dumps({"gateway": "g", "full": full, "services": list(services), "endpoints": []}).encode() + b"\n"


def endpoint_slice(*names, **conditions):
    """An EndpointSlice of the gateway's Service with these pods, all at this machine."""
    return {
        "endpoints": [
            {"addresses": ["127.0.0.1"], "conditions": conditions, "targetRef": {"kind": "Pod", "name": name}}
            for name in names
        ]
    }
