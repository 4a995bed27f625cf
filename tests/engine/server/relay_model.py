"""A relay and a deterministic engine, as small as they can be: what a relay keeps of an answer, and how it asks for the
rest of it."""

import asyncio
import json
from dataclasses import dataclass, field

import numpy as np

from inflight_engine.output import TokenLogprobs
from inflight_engine.request import FinishReason
from tests.engine.server.fake_engine import CAPACITY, until

HEADERS = {"x-inflight-progress": "1", "x-request-id": "one"}


def frames(text):
    """Complete frames: each its comments and its data, None where it has none. Of events that have names, the data is
    all of them, as a client gets them."""
    found = []
    for frame in text.split("\n\n")[:-1]:
        lines = frame.split("\n")
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        comments = [line[1:] for line in lines if line.startswith(":")]
        if any(line.startswith("event: ") for line in lines):
            named = "\n".join(line for line in lines if not line.startswith(":"))
            found.append((comments, named.replace("\n\r\n", "\n\n") + "\n\n"))
            continue
        assert len(data) <= 1
        assert len(data) + len(comments) == len(lines), f"what is this: {frame}"
        found.append((comments, data[0] if data else None))
    return found


@dataclass
class Choice:
    token_ids: list[int] = field(default_factory=list)
    seed: int | None = None
    finish_reason: str | None = None


@dataclass
class Kept:
    """State of a relay. `data`: events that it passed on. `pending`: events that wait for the report of a token.
    `whole`: body of an answer that is not streamed. `error`: status and ending. `usage`: as reported."""

    choices: list[Choice]
    data: list[str] = field(default_factory=list)
    whole: dict | None = None
    error: tuple[int, str] | None = None
    usage: dict | None = None
    pending: list[str] = field(default_factory=list)

    @property
    def begun(self):
        return any(each.token_ids or each.finish_reason for each in self.choices)

    @property
    def complete(self):
        return self.whole is not None or self.usage is not None

    def read(self, found):
        for comments, data in found:
            ended = False
            for comment in comments:
                match comment.split(" "):
                    case ["t", index, ids]:
                        assert self.choices[int(index)].finish_reason is None
                        self.choices[int(index)].token_ids += map(int, ids.split(","))
                    case ["f", index, reason]:
                        assert self.choices[int(index)].finish_reason is None
                        self.choices[int(index)].finish_reason = reason
                    case ["s", index, seed]:
                        assert self.choices[int(index)].seed is None
                        self.choices[int(index)].seed = int(seed)
                    case ["u", *_]:
                        assert self.usage is None
                        self.usage = json.loads(comment[2:])
                    case ["w", status]:
                        ended, self.whole = True, json.loads(data)
                        assert status == "200"
                    case ["e", status, what]:
                        self.error = int(status), what
                    case _:
                        assert comment == "h"
            if data is not None and not ended:
                self.pending.append(data)
            if self.begun:
                self.data += self.pending
                self.pending.clear()

    def cut(self):
        """Fields that a request for the rest has in addition, after the rest was lost."""
        self.pending.clear()
        if not self.begun:
            self.choices = [Choice() for _ in self.choices]
            return {}
        return {"inflight_continuation": self.continuation(1234)}

    def continuation(self, created):
        choices = [
            {"token_ids": each.token_ids, "seed": each.seed, "finish_reason": each.finish_reason}
            for each in self.choices
        ]
        return {"choices": choices, "created": created}


class Model:
    """Answers whatever comes to a fake engine: the tokens of a request are those of the script of its prompt and seed,
    from where it goes on. `pauses`: after how many tokens the API process may catch up."""

    def __init__(self, fake, scripts, pauses=1):
        self.fake, self.scripts, self.pauses = fake, scripts, pauses
        self.given = []
        self._task = asyncio.create_task(self._run())

    async def close(self):
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self):
        seen, engine = set(), self.fake.engine
        while True:
            await until(lambda: engine.requests.keys() - seen, 1000)
            new = sorted(engine.requests.keys() - seen)[: CAPACITY.max_num_seqs]
            seen.update(new)
            await self._answer(engine, [engine.requests[each] for each in new])

    async def _answer(self, engine, requests):
        running = {slot: [request, *self._tokens(request)] for slot, request in enumerate(requests)}
        engine.report(admitted=[(request.request_id, slot) for slot, request in enumerate(requests)])
        count = 0
        while running:
            tokens, scores, finished = {}, [], []
            for slot, (request, script, done) in list(running.items()):
                sampling = request.sampling
                token = script[done]
                running[slot][2] = done = done + 1
                tokens[slot] = token
                if sampling.logprobs is not None:
                    scores.append(TokenLogprobs(slot, -token - done / 100, [token], [-token - done / 100]))
                if token in sampling.stop_token_ids:
                    finished.append((request.request_id, FinishReason.STOP))
                elif done == sampling.max_tokens:
                    finished.append((request.request_id, FinishReason.LENGTH))
                if finished and finished[-1][0] == request.request_id:
                    del running[slot]
            engine.report(tokens=tokens, logprobs=scores, finished=finished)
            count += 1
            if count % self.pauses == 0:
                await asyncio.sleep(0.001)
            cancelled = {each.request_id for each in engine.cancels}
            running = {slot: each for slot, each in running.items() if each[0].request_id not in cancelled}

    def _tokens(self, request):
        prompt = np.frombuffer(request.prompt_token_ids, np.int32).astype(np.uint8).tobytes().decode()
        given = np.frombuffer(request.output_token_ids, np.int32).tolist()
        script = self.scripts(prompt, request.sampling.seed)
        assert given == script[: len(given)]
        assert len(given) < request.sampling.max_tokens
        self.given.append(len(given))
        return script, len(given)
