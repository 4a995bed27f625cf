"""Messages of gRPC that no client should send: each is refused by name, nothing reaches the engine, and the server
goes on."""

import asyncio
import math

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from inflight_engine.server.bodies.json_size import MAX_COMMAS, MAX_ITEMS
from inflight_engine.server.grpc.server import MAX_MESSAGE_BYTES, SERVICE
from tests.engine.server.test_grpc import asked, failure, running


@pytest.fixture
async def fake():
    async with running() as one:
        yield one


REFUSED = [
    (asked(b""), "prompt"),
    (asked(b"x" * 101), "prompt"),
    (asked([256]), "vocabulary"),
    (asked([2**32 - 1]), "vocabulary"),
    (pb.GenerateRequest(), "input"),
    (pb.GenerateRequest(text=""), "prompt"),
    (asked(temperature=math.nan), "temperature"),
    (asked(temperature=math.inf), "temperature"),
    (asked(temperature=-1), "temperature"),
    (asked(top_p=math.nan), "top_p"),
    (asked(top_p=1.5), "top_p"),
    (asked(min_p=math.nan), "min_p"),
    (asked(repetition_penalty=math.nan), "repetition_penalty"),
    (asked(repetition_penalty=1e30), "repetition_penalty"),
    (asked(frequency_penalty=math.nan), "frequency_penalty"),
    (asked(presence_penalty=-math.inf), "presence_penalty"),
    (asked(max_tokens=2**32 - 1), "max_tokens"),
    (asked(max_tokens=0), "max_tokens"),
    (asked(min_tokens=2**32 - 1), "min_tokens"),
    (asked(n=2**32 - 1), "n: "),
    (asked(n=9), "n"),
    (asked(logprobs=-1), "logprobs"),
    (asked(logprobs=2**31 - 1), "logprobs"),
    (asked(prompt_logprobs=-1), "prompt_logprobs"),
    (asked(stop=[""]), "stop"),
    (asked(stop=["x"] * 17), "stop"),
    (asked(stop=["x"] * (MAX_ITEMS + 1)), "stop"),
    (asked(stop_token_ids=[2**32 - 1]), "stop_token_ids"),
    (asked(stop_token_ids=range(129)), "stop_token_ids"),
    (asked(logit_bias={-1: 1.0}), "logit_bias"),
    (asked(logit_bias={2**31 - 1: 1.0}), "logit_bias"),
    (asked(logit_bias={1: math.nan}), "logit_bias"),
    (asked(logit_bias=dict.fromkeys(range(MAX_ITEMS + 1), 1.0)), "logit_bias"),
    (asked(truncate_prompt_tokens=-(2**31)), "truncate_prompt_tokens"),
    (asked(truncate_prompt_tokens=0), "truncate_prompt_tokens"),
    (asked(json_schema="{"), "structured_outputs"),
    (asked(json_schema="[" * 100_000), "structured_outputs"),
    (asked(regex="("), "structured_outputs"),
    (asked(grammar="root ::= ("), "structured_outputs"),
    (asked(structural_tag="{}"), "structured_outputs"),
    (asked(choice=pb.ChoiceConstraint()), "structured_outputs"),
    (asked(choice=pb.ChoiceConstraint(choices=[""] * (MAX_ITEMS + 1))), "choice"),
    (asked(bytes(MAX_COMMAS + 1)), "input_ids"),
    (asked(request_id="x" * 257), "request_id"),
    (pb.GenerateRequest(text="a", data_parallel_rank=1), "data_parallel_rank"),
    (pb.GenerateRequest(text="a", kv_transfer_params_json="{"), "kv_transfer_params_json"),
    (pb.GenerateRequest(text="a", kv_transfer_params_json="[]"), "kv_transfer_params"),
    (pb.GenerateRequest(text="a", kv_transfer_params_json="[" * 5000), "kv_transfer_params_json"),
    (
        pb.GenerateRequest(text="a", kv_transfer_params_json=f'{{"x":[{"[]," * MAX_ITEMS}[]]}}'),
        "kv_transfer_params_json",
    ),
    (pb.GenerateRequest(text="a", kv_transfer_params_json='{"do_remote_decode": 1}'), "do_remote_decode"),
    (pb.GenerateRequest(text="a", kv_transfer_params=pb.KvTransferParams(remote_host="h")), "kv_transfer_params"),
    (pb.GenerateRequest(text="a", mm_inputs=pb.MultimodalInputs()), "mm_inputs"),
    (pb.GenerateRequest(text="a", media_refs=pb.MediaRefs()), "media_refs"),
]


@pytest.mark.parametrize(("message", "named"), REFUSED, ids=range(len(REFUSED)))
async def test_what_no_request_may_have_is_refused_by_name(fake, message, named):
    error = await failure(fake.stub.Generate(message))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error
    assert named in error.details()
    assert len(error.details()) <= 1024
    assert not fake.engine.requests
    assert (await fake.stub.HealthCheck(pb.HealthCheckRequest())).healthy


def raw(port, name, message):
    async def call():
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            return await channel.unary_unary(f"/{SERVICE}/{name}")(message)

    return call()


@pytest.mark.parametrize("name", ["Generate", "Embed", "Abort", "HealthCheck", "GetLoads", "GetModelInfo"])
@pytest.mark.parametrize("message", [b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x01\xff", b"\x9a\x06\x01x"])
async def test_bytes_that_are_no_message_and_unknown_fields_are_refused(fake, name, message):
    if name in ("HealthCheck", "GetLoads", "GetModelInfo") and message == b"\x0a\x01\xff":
        pytest.skip("these messages have no text")
    error = await failure(raw(fake.port, name, message))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not fake.engine.requests


async def test_a_constraint_of_a_later_version_is_not_ignored(fake):
    params = pb.SamplingParams.FromString(b"\xf2\x06\x03a+b")  # field 110
    error = await failure(fake.stub.Generate(pb.GenerateRequest(text="a", sampling_params=params)))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "smg-grpc-proto" in error.details()


async def test_a_message_above_the_bound_is_not_taken(fake):
    error = await failure(fake.stub.Generate(pb.GenerateRequest(text="a" * MAX_MESSAGE_BYTES)))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert not fake.engine.requests


async def test_metadata_of_any_bytes_ends_no_stream_of_others(fake):
    call = fake.stub.Generate(asked())
    (request_id,) = await fake.started()
    for metadata in (
        (("x-request-id", "a b"), ("x-inflight-tenant", " ")),
        (("some-bin", b"\x00\xff"),),
        tuple(("authorization", "Bearer x") for _ in range(50)),
    ):
        assert (await fake.stub.GetModelInfo(pb.GetModelInfoRequest(), metadata=metadata)).vocab_size
    fake.engine.answer(request_id, "x")
    assert [each async for each in call]


async def test_an_abort_of_many_unknown_names_ends_nothing(fake):
    call = fake.stub.Generate(asked(request_id=""))
    (request_id,) = await fake.started()
    await fake.stub.Abort(pb.AbortRequest(request_ids=["", *map(str, range(100_000))]))
    assert not fake.engine.cancels
    fake.engine.answer(request_id, "x")
    assert [each async for each in call]


def test_no_message_of_random_values_is_answered_with_an_internal_error():
    number = st.floats(width=32)
    count = st.integers(0, 2**32 - 1) | st.integers(0, 8)
    params = st.builds(
        pb.SamplingParams,
        temperature=number,
        top_p=number,
        top_k=count,
        min_p=number,
        max_tokens=count,
        min_tokens=count,
        stop=st.lists(st.text(max_size=3), max_size=3),
        stop_token_ids=st.lists(count, max_size=3),
        n=count,
        logprobs=st.integers(-(2**31), 2**31 - 1),
        seed=st.integers(-(2**31), 2**31 - 1),
        logit_bias=st.dictionaries(st.integers(-(2**31), 2**31 - 1), number, max_size=2),
        truncate_prompt_tokens=st.integers(-(2**31), 2**31 - 1),
    )
    messages = st.builds(
        pb.GenerateRequest,
        request_id=st.text(max_size=3),
        tokenized=st.builds(pb.TokenizedInput, input_ids=st.lists(count, max_size=4)),
        sampling_params=params,
        stream=st.booleans(),
    )

    @given(st.lists(messages, min_size=1, max_size=20))
    @settings(deadline=None, max_examples=20)
    def check(sent):
        asyncio.run(_send(sent))

    check()


async def _send(sent):
    async with running(queue_timeout=0.05) as fake:
        for message in sent:
            call = fake.stub.Generate(message)
            async with asyncio.timeout(30):
                code = await call.code()
            assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.DEADLINE_EXCEEDED), message
        assert not len(fake.service.registry)
