"""Streams of named events that are cut between any two frames and go on at another replica."""

import pytest

from inflight_engine.formats.choose import ModelText
from tests.engine.server.conftest import Fake
from tests.engine.server.fake_engine import EOS, ByteTokenizer, connected, server_config, until
from tests.engine.server.relay_model import HEADERS, Choice, Kept, Model, frames
from tests.engine.server.sse import events, message_of, response_of

CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
TOOL = {"type": "function", "name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}}
RESPONSES = ("/v1/responses", {"model": "fake", "input": "?", "tools": [TOOL]}, response_of)
MESSAGES = (
    "/v1/messages",
    {
        "model": "fake",
        "messages": [{"role": "user", "content": "?"}],
        "tools": [{"name": "f", "input_schema": TOOL["parameters"]}],
        "stop_sequences": ["b"],
    },
    message_of,
)


def known(told):
    """Without times and what the cache had."""
    return {name: value for name, value in told.items() if name not in ("created_at", "completed_at", "usage")}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("end", [85, 60, 15])
@pytest.mark.parametrize(("path", "body", "read"), [RESPONSES, MESSAGES])
@pytest.mark.parametrize("text", ["<think>H</think>€ " + CALL, CALL, "é<think>a b c", ""])
async def test_an_answer_cut_behind_any_frame_goes_on_as_if_it_was_not(path, body, read, end, text, stream):
    tokenizer = ByteTokenizer()
    tokenizer.model_text = ModelText(chat_template="<think>")
    fake = Fake(*await connected(server_config(tool_call_parser="hermes"), tokenizer=tokenizer))
    model = Model(fake, lambda prompt, seed: [*text.encode(), EOS])
    limit = "max_output_tokens" if "input" in body else "max_tokens"
    body = {**body, limit: end, "temperature": 0, "stream": stream}

    def told(kept):
        if not stream:
            return known(kept.whole)
        return known(read(events("".join(each for each in kept.data if each != "[DONE]"))))

    try:
        plain = await fake.http.post(path, json=body, headers={"x-request-id": "one"})
        expected = known(read(events(plain.text)) if stream else plain.json())
        answer = await fake.http.post(path, json=body, headers=HEADERS)
        found = frames(answer.text)
        for cut in range(len(found) + 1):
            kept = Kept([Choice()])
            kept.read(found[:cut])
            while not kept.complete:
                sent = sum(len(events(each)) for each in kept.data)
                more = kept.cut()
                if more and path == "/v1/responses":
                    more["inflight_continuation"]["sequence_number"] = sent
                answer = await fake.http.post(path, json=body | more, headers=HEADERS)
                assert answer.status_code == 200, answer.text
                kept.read(frames(answer.text))
            assert told(kept) == expected, f"cut behind frame {cut} of {found}"
        await until(lambda: not len(fake.service.registry))
    finally:
        await model.close()
