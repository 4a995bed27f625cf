"""smg, a router, in front of the engine's gRPC port: chat, streams, structured output, log-probabilities, refusals,
clients that leave, connections that break, prompts computed by a second engine, and one that is killed, with OpenAI's
SDK as the router's client."""

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import time
import urllib.request

import openai
import pytest

READY_SECONDS = 120
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
LONG = [{"role": "user", "content": "Tell a very long story about the sea."}]
SAME = {"temperature": 0, "max_tokens": 24}


@pytest.fixture(scope="module")
def router(model, free_port):
    """Runs routers: `router(workers, folder)` has one in front of workers, which these flags name, while a block runs,
    and yields its address."""

    @contextlib.contextmanager
    def router(workers, folder):
        port = free_port()
        command = [sys.executable, "-m", "smg", "launch", "--host", "127.0.0.1", "--port", str(port)]
        command += [*workers, "--worker-startup-check-interval", "1"]
        command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
        with (folder / "smg.log").open("wb") as log:
            running = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            address = f"http://127.0.0.1:{port}/v1"
            client = openai.OpenAI(base_url=address, api_key="none", max_retries=0)
            deadline = time.monotonic() + READY_SECONDS
            while True:
                try:
                    client.chat.completions.create(model=model, messages=QUESTION, max_tokens=1)
                    break
                except openai.OpenAIError as error:
                    if running.poll() is not None or time.monotonic() > deadline:
                        said = (folder / "smg.log").read_text()[-2000:]
                        raise AssertionError(f"not ready: {error}: {said}") from None
                    time.sleep(0.2)
            yield address
        finally:
            running.kill()
            running.wait()

    return router


@pytest.fixture(scope="module")
def address(router, tmp_path_factory):
    with router(["--worker-urls", os.environ["INFLIGHT_GRPC"]], tmp_path_factory.mktemp("smg")) as address:
        yield address


@pytest.fixture(scope="module")
def client(address):
    with openai.OpenAI(base_url=address, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def direct(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def num_unfinished(url):
    with urllib.request.urlopen(f"{url}/load") as answer:
        return int(re.search(rb"\d+", answer.read())[0])


def wait_idle(url):
    deadline = time.monotonic() + 20
    while num_unfinished(url):
        assert time.monotonic() < deadline, "requests of clients that left still run"
        time.sleep(0.05)


def test_an_answer_and_its_stream_are_those_of_the_engine(client, direct, model):
    asked = {"model": model, "messages": QUESTION, **SAME}
    expected = direct.chat.completions.create(**asked)
    whole = client.chat.completions.create(**asked)
    assert whole.choices[0].message.content == expected.choices[0].message.content
    assert whole.choices[0].finish_reason == expected.choices[0].finish_reason
    chunks = [*client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})]
    text = "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)
    assert text == expected.choices[0].message.content
    for usage in (whole.usage, chunks[-1].usage):
        assert (usage.prompt_tokens, usage.completion_tokens) == (
            expected.usage.prompt_tokens,
            expected.usage.completion_tokens,
        )


def test_several_choices_and_a_stop_string(client, direct, model):
    asked = {"model": model, "prompt": "One, two, three,", "temperature": 1, "seed": 3, "n": 2, "max_tokens": 12}
    assert [each.text for each in client.completions.create(**asked).choices] == [
        each.text for each in direct.completions.create(**asked).choices
    ]
    stopped = {"model": model, "prompt": "One, two, three,", "temperature": 0, "max_tokens": 24, "stop": [","]}
    found, expected = (each.completions.create(**stopped).choices[0] for each in (client, direct))
    assert (found.text, found.finish_reason) == (expected.text, expected.finish_reason)


def test_an_answer_follows_a_schema(client, model):
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}
    form = {"type": "json_schema", "json_schema": {"name": "number", "schema": schema}}
    asked = {"model": model, "messages": QUESTION, "max_tokens": 48, "temperature": 0, "response_format": form}
    assert re.fullmatch(
        r'\s*\{\s*"n"\s*:\s*-?\d+\s*\}\s*', client.chat.completions.create(**asked).choices[0].message.content
    )


def test_log_probabilities_are_those_of_the_engine(client, direct, model):
    asked = {"model": model, "messages": QUESTION, **SAME, "logprobs": True, "top_logprobs": 2}
    found, expected = (each.chat.completions.create(**asked).choices[0].logprobs.content for each in (client, direct))
    assert [each.logprob for each in found] == pytest.approx([each.logprob for each in expected], abs=1e-2)


def test_a_request_that_does_not_fit_is_the_clients_error(client, model):
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        client.chat.completions.create(model=model, messages=QUESTION, max_tokens=1_000_000)


def test_streams_at_once_are_all_whole(address, direct, model):
    expected = direct.chat.completions.create(model=model, messages=QUESTION, **SAME).choices[0].message.content

    async def one(client):
        stream = await client.chat.completions.create(model=model, messages=QUESTION, **SAME, stream=True)
        return "".join([each.choices[0].delta.content or "" async for each in stream if each.choices])

    async def every():
        async with openai.AsyncOpenAI(base_url=address, api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(one(client) for _ in range(32)))

    texts = asyncio.run(every())
    assert len(texts) == 32
    assert set(texts) == {expected}


def test_clients_that_leave_end_their_requests(address, url, model):
    async def leave(client, chunks):
        stream = await client.chat.completions.create(model=model, messages=LONG, max_tokens=2000, stream=True)
        for _ in range(chunks):
            await anext(aiter(stream))
        await stream.close()

    async def every():
        async with openai.AsyncOpenAI(base_url=address, api_key="none", max_retries=0) as client:
            await asyncio.gather(*(leave(client, chunks) for chunks in (1, 1, 2, 3, 5, 8)))

    asyncio.run(every())
    wait_idle(url)


def loaded_blocks(url):
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        return float(re.search(rb"inflight_peer_loaded_blocks_total{[^}]*} (\S+)", answer.read())[1])


@pytest.fixture
def another(serve, free_port):
    """An engine of the test's own: its address, its gRPC address and its process."""
    port = free_port()
    url, process = serve("--grpc-port", str(port))
    return url, f"grpc://127.0.0.1:{port}", process


def test_one_engine_computes_prompts_and_another_one_answers(another, router, direct, url, model, tmp_path):
    told = [{"role": "user", "content": f"Sum up: {' '.join(f'line {number} says {number};' for number in range(30))}"}]
    asked = {"model": model, "messages": told, **SAME}
    workers = ["--prefill", another[1], "--decode", os.environ["INFLIGHT_GRPC"]]
    with (
        router(["--pd-disaggregation", *workers], tmp_path) as address,
        openai.OpenAI(base_url=address, api_key="none", max_retries=0) as client,
    ):
        before = loaded_blocks(url)
        found = client.chat.completions.create(**asked)
        assert loaded_blocks(url) >= before + found.usage.prompt_tokens // 16 - 1
        expected = direct.chat.completions.create(**asked)
        assert found.choices[0].message.content == expected.choices[0].message.content
        told[0]["content"] = told[0]["content"].replace("Sum up", "Tell me more about")
        before = loaded_blocks(url)
        chunks = [*client.chat.completions.create(**asked, stream=True)]
        text = "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)
        assert loaded_blocks(url) > before + 10
        assert text == direct.chat.completions.create(**asked).choices[0].message.content


async def pipe(reader, writer):
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


def test_a_connection_that_breaks_ends_its_requests_and_the_next_one_works(router, url, model, tmp_path):
    host, port = os.environ["INFLIGHT_GRPC"].removeprefix("grpc://").split(":")
    opened = []

    async def forward(reader, writer):
        there = await asyncio.open_connection(host, int(port))
        opened.extend((writer, there[1]))
        await asyncio.gather(pipe(reader, there[1]), pipe(there[0], writer))

    async def check():
        server = await asyncio.start_server(forward, "127.0.0.1", 0)
        worker = f"grpc://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        running = router(["--worker-urls", worker], tmp_path)
        address = await asyncio.to_thread(running.__enter__)
        try:
            async with openai.AsyncOpenAI(base_url=address, api_key="none", max_retries=0) as client:
                stream = await client.chat.completions.create(model=model, messages=LONG, max_tokens=2000, stream=True)
                await anext(aiter(stream))
                assert await asyncio.to_thread(num_unfinished, url) == 1
                for writer in opened:
                    writer.transport.abort()
                with contextlib.suppress(openai.OpenAIError):
                    assert "stop" not in [each.choices[0].finish_reason async for each in stream if each.choices]
                await asyncio.to_thread(wait_idle, url)
                deadline = time.monotonic() + 60
                while True:
                    try:
                        await client.chat.completions.create(model=model, messages=QUESTION, **SAME)
                        break
                    except openai.OpenAIError:
                        assert time.monotonic() < deadline, "the router found no way back"
                        await asyncio.sleep(0.5)
        finally:
            await asyncio.to_thread(running.__exit__, None, None, None)
            server.close()

    asyncio.run(check())


async def ending(stream):
    """Returns the finish reasons of a stream, or the error that it ends with."""
    try:
        return [choice.finish_reason async for each in stream for choice in each.choices if choice.finish_reason]
    except openai.APIError as error:
        return error


def test_an_engine_that_is_killed_ends_its_streams_with_errors_and_the_other_one_answers(
    another, router, direct, url, model, tmp_path
):
    other_url, other, process = another
    expected = direct.chat.completions.create(model=model, messages=QUESTION, **SAME).choices[0].message.content
    asked = {"model": model, "messages": LONG, "max_tokens": 400, "extra_body": {"ignore_eos": True}}

    async def check(address):
        async with openai.AsyncOpenAI(base_url=address, api_key="none", max_retries=0) as client:
            streams = [await client.chat.completions.create(**asked, stream=True) for _ in range(6)]
            for each in streams:
                await anext(aiter(each))
            assert (num_unfinished(url), num_unfinished(other_url)) == (3, 3)
            process.kill()
            later = (client.chat.completions.create(model=model, messages=QUESTION, **SAME) for _ in range(6))
            found = await asyncio.gather(*map(ending, streams), *later)
            return found[:6], found[6:]

    workers = ["--worker-urls", os.environ["INFLIGHT_GRPC"], other, "--policy", "round_robin"]
    with router(workers, tmp_path) as address:
        endings, later = asyncio.run(check(address))
    assert [each for each in endings if not isinstance(each, openai.APIError)] == [["length"]] * 3
    assert {each.choices[0].message.content for each in later} == {expected}
    wait_idle(url)
