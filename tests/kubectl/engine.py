"""A stand-in for an engine's API and for the forward to it: streams words at a pace over a real socket."""

import asyncio
import json
from contextlib import asynccontextmanager

from tests.standin import served


class StandInForward:
    """Stands in for `PortForward`: its clients reach the stand-in engine on a loopback port."""

    def __init__(self, url):
        self.url = url
        self.headers = {}
        self.problem = None


class StandInEngine:
    """Attributes:
    wait, pace: seconds before the first token, and between tokens.
    status: HTTP status of each answer; with another status than 200, `error` is the body.
    cut: True if streams end without their last event.
    bodies: bodies of all requests.
    """

    def __init__(self, wait=0.0, pace=0.0, status=200, error="", cut=False):
        self.wait, self.pace, self.status, self.error, self.cut = wait, pace, status, error, cut
        self.bodies = []
        self.open = self.most = 0

    async def respond(self, request, to):
        if request.method == b"GET":
            to.whole(b"")
            return
        self.open += 1
        self.most = max(self.most, self.open)
        await self._stream(json.loads(request.body), to)
        self.open -= 1

    async def _stream(self, body, to):
        self.bodies.append(body)
        if self.status != 200:
            to.whole(json.dumps({"error": {"message": self.error}}).encode(), status=b"%d X" % self.status)
            return
        to.begin(progress=False)
        await asyncio.sleep(self.wait)
        tokens = body["max_tokens"]
        for number in range(tokens):
            if number:
                await asyncio.sleep(self.pace)
            end = "length" if number == tokens - 1 else None
            to.send(event({"choices": [{"text": f"w{number} ", "finish_reason": end}]}))
        if not self.cut:
            to.send(event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": tokens}}))
            to.send(b"data: [DONE]\n\n")
        to.end()


def event(content):
    return f"data: {json.dumps(content)}\n\n".encode()


@asynccontextmanager
async def serving(engine):
    """The forward to an engine that is served."""
    async with served(engine.respond) as url:
        yield StandInForward(url)
