"""vLLM's gRPC service of the real command, engine process and model, beside HTTP."""

import re

import grpc
import httpx
import pytest
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2_grpc
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

PROMPT = "The capital of France is"


@pytest.fixture
async def stub(server):
    port = re.search(r"gRPC on .* port (\d+)", server.log.read_text())[1]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield vllm_engine_pb2_grpc.VllmEngineStub(channel)


def over_http(server, **body):
    answer = httpx.post(f"{server.url}/v1/completions", json={"prompt": PROMPT, "max_tokens": 24, **body}, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


async def over_grpc(stub, *, stream, **params):
    sampling = pb.SamplingParams(max_tokens=24, **params)
    call = stub.Generate(pb.GenerateRequest(text=PROMPT, stream=stream, sampling_params=sampling), timeout=120)
    return [each async for each in call]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("http", "rpc"),
    [
        ({"temperature": 0}, {"temperature": 0}),
        ({"temperature": 1, "seed": 7}, {"temperature": 1, "seed": 7}),
        ({"temperature": 0, "structured_outputs": {"regex": "[a-z ]+"}}, {"temperature": 0, "regex": "[a-z ]+"}),
        ({"temperature": 0, "stop": ["Paris"]}, {"temperature": 0, "stop": ["Paris"]}),
    ],
)
async def test_the_tokens_are_those_of_http(server, stub, stream, http, rpc):
    expected = over_http(server, **http, return_token_ids=True)
    *chunks, last = await over_grpc(stub, stream=stream, **rpc)
    assert [*last.complete.output_ids] == expected["token_ids"]
    assert last.complete.finish_reason == expected["finish_reason"]
    if stream:
        assert [token for each in chunks for token in each.chunk.token_ids] == expected["token_ids"]


async def test_log_probabilities_are_those_of_http(server, stub):
    expected = over_http(server, temperature=0, logprobs=3)["logprobs"]
    (only,) = await over_grpc(stub, stream=False, temperature=0, logprobs=3)
    found = only.complete.output_logprobs
    # Batches of other sizes may differ in last bits.
    assert [*found.token_logprobs] == pytest.approx(expected["token_logprobs"], abs=1e-3)
    assert {len(each.token_ids) for each in found.top_logprobs} == {3}


async def test_prompt_log_probabilities_have_none_for_the_first_token(stub):
    first, *_ = await over_grpc(stub, stream=True, temperature=0, prompt_logprobs=2)
    scores = first.chunk.input_logprobs
    assert len(scores.token_ids) == len(scores.token_logprobs) == len(scores.top_logprobs) == first.chunk.prompt_tokens
    assert [each.HasField("value") for each in scores.token_logprobs] == [False] + [True] * (len(scores.token_ids) - 1)


async def test_the_tokenizer_and_an_embedding_come_over_a_real_port(stub):
    packed = b"".join([each.data async for each in stub.GetTokenizer(common_pb2.GetTokenizerRequest())])
    assert packed.startswith(b"PK")
    answer = await stub.Embed(pb.EmbedRequest(tokenized=pb.TokenizedInput(input_ids=[1, 2, 3])))
    assert sum(value * value for value in answer.embedding) == pytest.approx(1, abs=1e-3)
