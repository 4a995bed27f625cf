"""Fields of a body in the head of the relay's requests."""

from __future__ import annotations

import json
import re

import pytest

from inflight_gateway.request.body import NO_FIELDS, from_header, parse
from inflight_gateway.request.headers import BODY, PROGRESS
from tests.gateway.relay.fake_engine import Do, frames_for, token

ASKED = {"model": "m", "stream": True, "max_tokens": 7, "seed": 3, "class": "batch", "prompt": "once " * 200}


def fields(seen):
    return from_header(seen.headers[BODY])


async def test_every_attempt_has_the_fields_of_its_body_with_the_tokens_that_it_continues(relay):
    frames = frames_for(ASKED)
    after_two = [match.end() for match in re.finditer(rb":t [^\n]*\n[^\n]*\n\n", frames)][1]
    relay.script(Do(no_head=True), Do(cut=after_two), Do())
    assert (await relay.post(ASKED, "/v1/completions"))[0] == 200
    first, again, continued = relay.engine.seen
    body = parse(json.dumps(ASKED).encode())
    assert len(body.blocks) == 3 * 8
    assert fields(first) == fields(again) == body
    choice = continued.json["inflight_continuation"]["choices"][0]
    assert choice["token_ids"] == [token(3, 0), token(3, 1)]
    assert fields(continued) == body.continued(2)


async def test_a_long_prompt_passes_in_the_head(relay):
    asked = {**ASKED, "prompt": "x" * 30_000}
    assert (await relay.post(asked, "/v1/completions"))[0] == 200
    assert fields(relay.engine.seen[0]) == parse(json.dumps(asked).encode())


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"model": "\xff"}', b"[" * 100_000])
async def test_a_body_that_no_engine_takes_has_no_fields_and_asks_for_no_progress_frames(relay, body):
    relay.script(Do(status=400, body=b"{}"))
    async with relay.session.post("http://svc.ns/v1/completions", data=body) as response:
        assert response.status == 400
    assert fields(relay.engine.seen[0]) == NO_FIELDS
    assert PROGRESS not in relay.engine.seen[0].headers


async def test_other_requests_have_no_fields_but_their_body(relay):
    relay.script(Do(status=200, body=b"{}"))
    await relay.post(ASKED, "/tokenize", headers={BODY: "forged"})
    assert BODY not in relay.engine.seen[0].headers
