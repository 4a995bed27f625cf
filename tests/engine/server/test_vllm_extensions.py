"""vLLM's extensions of OpenAI's API, in vLLM's names and shapes."""

import asyncio
import json
import threading

import httpx
import pytest

from inflight_engine.logs import TextFormatter
from inflight_engine.request import FinishReason
from tests.engine.server.fake_engine import EOS, ByteTokenizer, until
from tests.engine.server.test_requests import events, usage

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
PROMPT = list(b"user:hi\n")


def start(fake, path="/v1/completions", headers=None, **body):
    content = CHAT if "chat" in path else {"prompt": "hello"}
    return asyncio.create_task(fake.http.post(path, json={**content, **body}, headers=headers))


async def answered(fake, text="ab", cached=0):
    """A request is admitted, gets the tokens of `text` step by step and an end-of-sequence token, and ends."""
    await until(lambda: fake.engine.requests)
    fake.engine.report(admitted=[(0, 1, cached)])
    for token in [*text.encode(), EOS]:
        fake.engine.report(tokens={1: token})
        await asyncio.sleep(0.005)
    fake.engine.report(finished=[(0, FinishReason.STOP)])


async def chunks(call):
    *found, done = events((await call).text)
    assert done == "[DONE]"
    return [json.loads(each) for each in found]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_usage_says_how_much_of_the_prompt_was_cached(make_fake, path):
    fake = await make_fake()
    call = start(fake, path)
    await answered(fake, cached=3)
    assert (await call).json()["usage"] == usage(8 if "chat" in path else 5, 3, cached=3)


async def test_cached_tokens_count_once_for_each_prompt(make_fake):
    fake = await make_fake()
    call = start(fake, prompt=["ab", "cd"], n=2)
    await until(lambda: len(fake.engine.requests) == 4)
    fake.engine.report(admitted=[(0, 0, 1), (1, 1, 2), (2, 2, 1), (3, 3, 2)])
    fake.engine.report(finished=[(request_id, FinishReason.STOP) for request_id in range(4)])
    assert (await call).json()["usage"] == usage(4, 0, cached=2)


async def test_a_later_admission_does_not_count_as_cached(make_fake):
    fake = await make_fake()
    call = start(fake)
    await until(lambda: fake.engine.requests)
    fake.engine.report(admitted=[(0, 0, 0)], tokens={0: 97})
    fake.engine.report(admitted=[(0, 1, 4)], tokens={1: 97})
    fake.engine.report(finished=[(0, FinishReason.STOP)])
    assert (await call).json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


async def test_every_chunk_has_the_usage_up_to_there_where_it_is_asked_for(make_fake):
    fake = await make_fake()
    options = {"include_usage": True, "continuous_usage_stats": True}
    call = start(fake, "/v1/chat/completions", stream=True, stream_options=options)
    await answered(fake)
    *found, last = await chunks(call)
    counted = [chunk["usage"]["completion_tokens"] for chunk in found]
    assert counted[0] <= 1
    assert counted == sorted(counted)
    assert found[-1]["usage"] == {"prompt_tokens": 8, "completion_tokens": 3, "total_tokens": 11}
    assert (last["choices"], last["usage"]) == ([], usage(8, 3))


async def test_token_ids_of_a_whole_completion(make_fake):
    fake = await make_fake()
    call = start(fake, return_token_ids=True)
    await answered(fake)
    (choice,) = (await call).json()["choices"]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == (list(b"hello"), [97, 98, EOS])


async def test_token_ids_of_a_whole_chat(make_fake):
    fake = await make_fake()
    call = start(fake, "/v1/chat/completions", return_token_ids=True)
    await answered(fake)
    answer = (await call).json()
    assert (answer["prompt_token_ids"], answer["choices"][0]["token_ids"]) == (PROMPT, [97, 98, EOS])


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_token_ids_of_a_stream_make_up_the_whole(make_fake, path):
    fake = await make_fake()
    call = start(fake, path, stream=True, return_token_ids=True)
    await answered(fake)
    found = await chunks(call)
    choices = [chunk["choices"][0] for chunk in found]
    assert [token for choice in choices for token in choice.get("token_ids", [])] == [97, 98, EOS]
    prompts = [chunk["prompt_token_ids"] for chunk in (*found, *choices) if "prompt_token_ids" in chunk]
    assert prompts == [PROMPT if "chat" in path else list(b"hello")]


async def test_token_ids_are_not_there_unless_asked_for(make_fake):
    fake = await make_fake()
    call = start(fake)
    await answered(fake)
    assert "token_ids" not in (await call).text


async def test_the_request_id_is_the_clients_in_header_and_answer(make_fake):
    fake = await make_fake()
    call = start(fake, headers={"X-Request-Id": "abc-1"})
    await answered(fake)
    answer = await call
    assert (answer.headers["x-request-id"], answer.json()["id"]) == ("abc-1", "cmpl-abc-1")


@pytest.mark.parametrize("given", ["two words", "x" * 129, ""])
async def test_a_request_without_a_usable_id_gets_one(make_fake, given):
    fake = await make_fake()
    ids = {(await fake.http.get("/health", headers={"X-Request-Id": given})).headers["x-request-id"] for _ in "ab"}
    assert len(ids) == 2
    assert given not in ids


async def test_errors_have_the_request_id_too(make_fake):
    fake = await make_fake()
    answer = await fake.http.post("/v1/completions", json={}, headers={"X-Request-Id": "abc"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (400, "abc")


async def test_a_line_break_in_a_path_makes_no_line_in_the_log(make_fake, caplog):
    caplog.set_level("DEBUG", "inflight_engine.access")
    fake = await make_fake()
    await fake.http.get("/v1/models/a%0Ab", headers={"X-Request-Id": "abc"})
    (record,) = (record for record in caplog.records if record.name == "inflight_engine.access")
    line = TextFormatter("api").format(record)
    assert "request method=GET path=/v1/models/a%0Ab status=404" in line
    assert "\n" not in line


async def test_a_failure_of_the_server_has_the_request_id_too(make_fake, monkeypatch):
    monkeypatch.setattr(ByteTokenizer, "encode", lambda *_, **__: 1 / 0)
    fake = await make_fake()
    transport = httpx.ASGITransport(fake.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as http:
        answer = await http.post("/v1/completions", json={"prompt": "a"}, headers={"X-Request-Id": "abc"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (500, "abc")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/generate"])
async def test_min_tokens_reach_the_engine(make_fake, path):
    fake = await make_fake()
    call = start(fake, path, min_tokens=2, max_tokens=2, **({"prompt": "hello"} if "generate" in path else {}))
    await answered(fake)
    assert fake.engine.requests[0].sampling.min_tokens == 2
    assert (await call).status_code == 200


async def test_tokens_that_the_model_cannot_sample_end_nothing(make_fake):
    tokenizer = ByteTokenizer()
    tokenizer.eos_token_ids = (-1, EOS, 255, 256)
    fake = await make_fake(tokenizer=tokenizer)
    call = start(fake, min_tokens=2)
    await answered(fake)
    await call
    assert fake.engine.requests[0].sampling.stop_token_ids == (EOS, 255)


async def test_stop_strings_are_looked_for_after_min_tokens(make_fake):
    fake = await make_fake()
    call = start(fake, min_tokens=3, stop="b", max_tokens=8)
    await until(lambda: fake.engine.requests)
    fake.engine.report(admitted=[(0, 0)])
    for token in b"abaab":
        fake.engine.report(tokens={0: token})
    answer = (await call).json()
    assert answer["choices"][0]["text"] == "abaa"


async def test_tokenize_a_prompt(make_fake):
    fake = await make_fake()
    answer = await fake.post("/tokenize", prompt="ab", model="fake")
    assert answer.json() == {"count": 2, "max_model_len": 100, "tokens": [97, 98], "token_strs": None}
    strings = (await fake.post("/tokenize", prompt="ab", return_token_strs=True, add_special_tokens=False)).json()
    assert strings["token_strs"] == ["a", "b"]


async def test_tokenize_a_conversation(make_fake):
    fake = await make_fake()
    assert (await fake.post("/tokenize", **CHAT)).json()["tokens"] == PROMPT
    without = (await fake.post("/tokenize", **CHAT, add_generation_prompt=False)).json()
    assert without["tokens"] == [*PROMPT, *b"end"]


async def test_detokenize(make_fake):
    fake = await make_fake()
    assert (await fake.post("/detokenize", tokens=[97, 98])).json() == {"prompt": "ab"}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": 3}, "prompt"),
        ("/tokenize", {"prompt": "a", "lines": 3}, "lines"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {**CHAT, "prompt": "a"}, "prompt"),
        ("/tokenize", {**CHAT, "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"prompt": "a", "tools": []}, "tools"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": False}, "add_generation_prompt"),
        ("/detokenize", {"tokens": [256]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens.0"),
    ],
)
async def test_what_cannot_be_tokenized_is_refused(make_fake, path, body, param):
    fake = await make_fake()
    answer = await fake.post(path, **body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_another_models_tokens_are_404(make_fake):
    fake = await make_fake()
    assert (await fake.post("/tokenize", prompt="a", model="other")).status_code == 404


@pytest.mark.parametrize(("length", "in_loop"), [(4095, True), (4096, False)])
async def test_long_prompts_do_not_hold_up_the_streams_of_others(make_fake, monkeypatch, length, in_loop):
    threads, encode = set(), ByteTokenizer.encode

    def spied(*arguments, **how):
        threads.add(threading.current_thread())
        return encode(*arguments, **how)

    monkeypatch.setattr(ByteTokenizer, "encode", spied)
    fake = await make_fake()
    assert (await fake.post("/tokenize", prompt="x" * length)).json()["count"] == length
    assert (threads == {threading.main_thread()}) == in_loop


async def test_tools_may_be_long_too(make_fake, monkeypatch):
    threads, encode_chat = set(), ByteTokenizer.encode_chat

    def spied(*arguments, **how):
        threads.add(threading.current_thread())
        return encode_chat(*arguments, **how)

    monkeypatch.setattr(ByteTokenizer, "encode_chat", spied)
    fake = await make_fake()
    tool = {"type": "function", "function": {"name": "f", "parameters": {"description": "x" * 4096}}}
    assert (await fake.post("/tokenize", **CHAT, tools=[tool])).status_code == 200
    assert threading.main_thread() not in threads


@pytest.mark.parametrize(("length", "in_loop"), [(4095, True), (4096, False)])
async def test_long_lists_of_tokens_do_not_hold_up_the_streams_of_others(make_fake, monkeypatch, length, in_loop):
    threads, spell = set(), ByteTokenizer.spell

    def spied(*arguments):
        threads.add(threading.current_thread())
        return spell(*arguments)

    monkeypatch.setattr(ByteTokenizer, "spell", spied)
    fake = await make_fake()
    assert (await fake.post("/detokenize", tokens=[97] * length)).json() == {"prompt": "a" * length}
    assert (threads == {threading.main_thread()}) == in_loop


async def test_version(make_fake):
    fake = await make_fake()
    assert set((await fake.http.get("/version")).json()) == {"version"}


async def test_the_tokenizers_settings_are_shown_only_where_the_flag_says_so(make_fake):
    tokenizer = ByteTokenizer()
    tokenizer.settings = {"eos_token": "<end>", "model_max_length": 10**30}
    fake = await make_fake(tokenizer=tokenizer, enable_tokenizer_info_endpoint=True)
    assert (await fake.http.get("/tokenizer_info")).json() == tokenizer.settings
    assert (await (await make_fake(tokenizer=tokenizer)).http.get("/tokenizer_info")).status_code == 404
