"""An engine without a model, whose steps take as long as a GPU's: `python -m tools.standin.timed PORT`.

Continuous batching; first come, first served, or for requests that name their tenant, fair shares by virtual token
counters, as the engine's policy `fair`. On a GPU a step of few sequences takes about the time to read the
weights, however many they are, so requests that run side by side hardly slow each other down; on a CPU they share its
arithmetic. So here only the decisions of the gateway delay a request beside others.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from dataclasses import dataclass

from inflight_cost.model import CostModel, StepWork
from inflight_gateway.hold.service_queue import VirtualCounters
from inflight_gateway.request.headers import TENANT
from inflight_policies.service_counter import OUTPUT_TOKEN, PROMPT_TOKEN
from tools.standin.connection import PROGRESS, Connection, Request, listen

COST = CostModel(
    base_s=25e-3,
    decode_seq_s=50e-6,
    prefill_token_s=60e-6,
    decode_kv_token_s=0.0,
    prefill_context_token_s=0.0,
)
"""Cost model of about a 70B model on four H100: 35 GB of weights for each at 2 TB/s, with communication."""
MAX_NUM_SEQS = 8
MAX_QUEUED = 64
"""Queued requests of each named tenant: with one bound for all, requests beside a flood would be refused, and their
latency not be measured."""


class Timed(Connection):
    """A client's connection to `engine`: it carries a request at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._running: _Request | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._running is not None:
            self._engine.leave(self._running)

    def answer(self, request: Request) -> None:
        if request.method == b"GET":
            self.whole(self._engine.page(), b"text/plain")
            return
        body = json.loads(request.body)
        tenant = request.header(TENANT.encode()).decode()
        one = _Request(self, tenant, bool(request.header(PROGRESS)), len(body["prompt"]), body["max_tokens"])
        if self._engine.take(one):
            self._running = one
            self.begin(one.progress)
        else:
            self.whole(b'{"error": {"message": "the queue is full"}}', status=b"503 Service Unavailable")


@dataclass(slots=True, eq=False)
class _Request:
    connection: Timed
    tenant: str
    progress: bool
    prompt_tokens: int
    output_tokens: int
    done: int = 0

    def step(self) -> None:
        """Generates a token, and sends it unless the client has left."""
        self.done += 1
        if not self.connection.transport.is_closing():
            self.connection.send(self._frame())
            if self.done == self.output_tokens:
                self.connection.send(b"data: [DONE]\n\n")
                self.connection.end()

    def _frame(self) -> bytes:
        """Returns the next progress frame (docs/engine.md), or server-sent event without frames."""
        last = self.done == self.output_tokens
        choice = {"index": 0, "text": "x", "finish_reason": "length" if last else None}
        data = b"data: " + json.dumps({"object": "text_completion", "choices": [choice]}).encode() + b"\n\n"
        if not self.progress:
            return data
        usage = {"prompt_tokens": self.prompt_tokens, "cached_tokens": 0, "completion_tokens": self.output_tokens}
        ended = b":f 0 length\n:u %s\n" % json.dumps(usage).encode() if last else b""
        return b":t 0 7\n" + ended + data


class Engine:
    """A replica."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[_Request]] = {}
        """Waiting requests by tenant."""
        self._counters = VirtualCounters()
        self._running: list[_Request] = []
        self._work = asyncio.Event()

    async def steps(self) -> None:
        """Runs steps while there is work. A prompt is computed in one step."""
        while True:
            if not self._running and not self._waiting:
                self._work.clear()
                await self._work.wait()
            decoding, prompts = len(self._running), 0
            while len(self._running) < MAX_NUM_SEQS and (tenant := self._counters.least()) is not None:
                self._running.append(self._waiting[tenant][0])
                self._leave_queue(self._running[-1])
                prompts += self._running[-1].prompt_tokens
                self._counters.charge(tenant, PROMPT_TOKEN * self._running[-1].prompt_tokens)
            await asyncio.sleep(COST.seconds(StepWork(decoding, prompts, 0, 0)))
            for each in self._running:
                each.step()
                self._counters.charge(each.tenant, OUTPUT_TOKEN)
            self._running = [each for each in self._running if each.done < each.output_tokens]

    def take(self, one: _Request) -> bool:
        """Queue a request; False where its tenant has too many."""
        if one.tenant not in self._waiting:
            self._waiting[one.tenant] = deque()
            self._counters.start_waiting(one.tenant, 1.0)
        elif len(self._waiting[one.tenant]) >= MAX_QUEUED:
            return False
        self._waiting[one.tenant].append(one)
        self._work.set()
        return True

    def leave(self, one: _Request) -> None:
        """The client of a request left."""
        one.done = one.output_tokens
        if one in self._waiting.get(one.tenant, ()):
            self._leave_queue(one)

    def _leave_queue(self, one: _Request) -> None:
        self._waiting[one.tenant].remove(one)
        if not self._waiting[one.tenant]:
            del self._waiting[one.tenant]
            self._counters.stop_waiting(one.tenant)

    def page(self) -> bytes:
        """The metrics page."""
        values = {
            "vllm:num_requests_running": len(self._running),
            "vllm:num_requests_waiting": sum(len(queue) for queue in self._waiting.values()),
            "inflight_waiting_prompt_tokens": sum(
                each.prompt_tokens for queue in self._waiting.values() for each in queue
            ),
            "inflight_kv_cache_tokens": 100_000,
            "inflight_max_num_seqs": MAX_NUM_SEQS,
            "inflight_max_num_batched_tokens": 2048,
            'inflight_step_cost_seconds{term="step"}': COST.base_s,
            'inflight_step_cost_seconds{term="decode_sequence"}': COST.decode_seq_s,
            'inflight_step_cost_seconds{term="prefill_token"}': COST.prefill_token_s,
            'inflight_step_cost_seconds{term="decode_kv_token"}': COST.decode_kv_token_s,
            'inflight_step_cost_seconds{term="prefill_context_token"}': COST.prefill_context_token_s,
        }
        return "".join(f"{name} {value}\n" for name, value in values.items()).encode()


async def serve(port: int) -> None:
    """Answer on `port` until the process ends."""
    engine = Engine()
    await listen(lambda: Timed(engine), port)
    await engine.steps()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
