"""vLLM's gRPC service: a real client over a real connection, and a fake engine behind the server."""

import asyncio
import hashlib
import hmac
import io
import json
import math
import time
import zipfile
from contextlib import asynccontextmanager
from types import MappingProxyType

import grpc
import pytest
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2_grpc
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from inflight_contract.tenants import SIGNATURE_HEADER, TENANT_HEADER
from inflight_engine.output import TokenLogprobs
from inflight_engine.request import FinishReason
from inflight_engine.server.grpc.server import serve_grpc
from inflight_engine.server.http.middleware import OpenResponses
from tests.engine.server.fake_engine import READY, ByteTokenizer, connect_engine, connected, server_config, until


class _Saved(ByteTokenizer):
    """A tokenizer with files, too many to fit into one message."""

    settings = MappingProxyType({"chat_template": "x"})

    def serialized(self):
        return "".join(hashlib.sha256(bytes([i // 256, i % 256])).hexdigest() for i in range(4096))


class Fake:
    """A service with a fake engine, its gRPC server, and a client of it."""

    def __init__(self, service, engine, responses, stub, port):
        self.service, self.engine, self.responses, self.stub, self.port = service, engine, responses, stub, port

    async def started(self, number=1):
        await until(lambda: len(self.engine.requests) >= number)
        return [*self.engine.requests]


@asynccontextmanager
async def running(*, load=True, tokenizer=None, **changes):
    config = server_config(grpc_port=0, **changes)
    service, engine, _ = await connected(config, load=load, tokenizer=tokenizer)
    responses = OpenResponses()
    server, port = await serve_grpc(service, responses)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Fake(service, engine, responses, vllm_engine_pb2_grpc.VllmEngineStub(channel), port)
    await server.stop(None)


@pytest.fixture
async def fake():
    async with running() as one:
        yield one


def asked(prompt=b"Hi", *, request_id="r", stream=True, **params):
    tokens = pb.TokenizedInput(input_ids=prompt)
    sampling = pb.SamplingParams(**params)
    return pb.GenerateRequest(request_id=request_id, tokenized=tokens, stream=stream, sampling_params=sampling)


async def failure(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        [_ async for _ in call] if hasattr(call, "__aiter__") else await call
    return caught.value


async def test_a_stream_has_each_token_once_and_ends_with_all_of_them(fake):
    call = fake.stub.Generate(asked(max_tokens=5, temperature=0))
    (request_id,) = await fake.started()
    fake.engine.answer(request_id, "hello", reason=FinishReason.LENGTH)
    *chunks, last = [each async for each in call]
    assert bytes(token for each in chunks for token in each.chunk.token_ids) == b"hello"
    assert sum(each.chunk.completion_tokens for each in chunks) == 5
    assert bytes(last.complete.output_ids) == b"hello"
    assert (last.complete.finish_reason, last.complete.prompt_tokens, last.complete.completion_tokens) == (
        *("length", 2, 5),
    )


async def test_a_whole_answer_is_one_message(fake):
    call = fake.stub.Generate(asked(stream=False))
    (request_id,) = await fake.started()
    fake.engine.answer(request_id, "hello")
    (only,) = [each async for each in call]
    assert bytes(only.complete.output_ids) == b"hello"
    assert only.complete.finish_reason == "stop"


async def test_each_of_several_choices_has_its_index_and_its_end(fake):
    call = fake.stub.Generate(asked(n=3, seed=7))
    for slot, request_id in enumerate(await fake.started(3)):
        fake.engine.answer(request_id, "abc"[slot] * 2, slot)
    found = [each async for each in call]
    assert {each.complete.index: bytes(each.complete.output_ids) for each in found if each.HasField("complete")} == {
        0: b"aa",
        1: b"bb",
        2: b"cc",
    }
    assert [fake.engine.requests[each].sampling.seed for each in fake.engine.requests] == [7, 8, 9]


async def test_a_prompt_may_be_text(fake):
    call = fake.stub.Generate(pb.GenerateRequest(text="Hi", stream=False))
    (request_id,) = await fake.started()
    assert fake.engine.requests[request_id].prompt_token_ids == bytes([72, 0, 0, 0, 105, 0, 0, 0])
    fake.engine.answer(request_id, "x")
    assert len([each async for each in call]) == 1


async def test_the_engine_gets_of_a_message_what_it_gets_of_the_same_http_request(make_fake, fake):
    http = await make_fake()
    params = {
        **{"temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125, "frequency_penalty": 1.5, "seed": 5},
        **{"presence_penalty": -0.5, "repetition_penalty": 1.5, "max_tokens": 9, "min_tokens": 2, "logprobs": 3},
        **{"prompt_logprobs": 2, "stop_token_ids": [65, 66], "ignore_eos": True, "n": 2},
    }
    body = {"prompt": [72, 105], **params, "logit_bias": {"3": 1.5}, "structured_outputs": {"regex": "a+"}}
    asking = asyncio.create_task(http.post("/v1/completions", **body))
    await until(lambda: len(http.engine.requests) == 2)
    asking.cancel()
    call = fake.stub.Generate(asked(**params, logit_bias={3: 1.5}, regex="a+"))
    await fake.started(2)
    call.cancel()
    for one, other in zip(http.engine.requests.values(), fake.engine.requests.values(), strict=True):
        assert one.sampling == other.sampling
        assert one.scheduling == other.scheduling
        assert one.prompt_token_ids == other.prompt_token_ids


@pytest.mark.parametrize(
    ("constraint", "grammar"),
    [
        ({"json_schema": '{"type": "integer"}'}, True),
        ({"regex": "a|b"}, True),
        ({"grammar": 'root ::= "a"'}, True),
        ({"json_object": True}, True),
        ({"json_object": False}, False),
        ({"choice": pb.ChoiceConstraint(choices=["a", "b"])}, True),
        ({"regex": "a", "grammar_from_first_token": True}, True),
    ],
)
async def test_constraints_bind_the_answer(fake, constraint, grammar):
    call = fake.stub.Generate(asked(**constraint))
    (request_id,) = await fake.started()
    assert (fake.engine.requests[request_id].sampling.grammar is not None) == grammar
    call.cancel()


async def test_a_stop_string_ends_the_answer_and_is_named(fake):
    call = fake.stub.Generate(asked(stop=["lo"]))
    (request_id,) = await fake.started()
    fake.engine.report(admitted=[(request_id, 0)])
    for token in b"hello":
        fake.engine.report(tokens={0: token})
    *_, last = [each async for each in call]
    assert (last.complete.finish_reason, last.complete.matched_stop_str) == ("stop", "lo")
    call = fake.stub.Generate(asked(stop_token_ids=[9]))
    (_, request_id) = await fake.started(2)
    fake.engine.answer(request_id, "ab\t")
    *_, last = [each async for each in call]
    assert (last.complete.matched_token_id, bytes(last.complete.output_ids)) == (9, b"ab\t")


@pytest.mark.parametrize("stream", [True, False])
async def test_log_probabilities_go_with_their_tokens(fake, stream):
    call = fake.stub.Generate(asked(logprobs=2, stop=["zz"], stream=stream))
    (request_id,) = await fake.started()
    fake.engine.report(admitted=[(request_id, 0)])
    for token in b"abz":
        scores = TokenLogprobs(0, -math.inf if token == 98 else -0.5, [token, 1], [-0.5, -math.inf])
        fake.engine.report(tokens={0: token}, logprobs=[scores])
    fake.engine.report(finished=[(request_id, FinishReason.LENGTH)])
    messages = [each async for each in call]
    scores = [each.chunk.output_logprobs for each in messages[:-1]] or [messages[-1].complete.output_logprobs]
    assert b"".join(bytes(each.token_ids) for each in scores) == b"abz"
    assert [value for each in scores for value in each.token_logprobs] == [-0.5, -9999.0, -0.5]
    assert [[*each.token_ids] for one in scores for each in one.top_logprobs] == [[97, 1], [98, 1], [122, 1]]
    if stream:
        assert not messages[-1].complete.HasField("output_logprobs")
        assert b"".join(bytes(each.chunk.token_ids) for each in messages[:-1]) == b"abz"


async def test_a_client_that_cancels_frees_its_slot(fake):
    call = fake.stub.Generate(asked(n=2))
    await fake.started(2)
    fake.engine.report(admitted=[(0, 0), (1, 1)])
    fake.engine.report(tokens={0: 65})
    await anext(aiter(call))
    call.cancel()
    await until(lambda: len(fake.engine.cancels) == 2)
    assert {each.reason for each in fake.engine.cancels} == {FinishReason.ABORT}
    await until(lambda: not len(fake.service.registry))
    await fake.responses.none_left()


async def test_a_request_ends_with_the_deadline_of_its_client(fake):
    call = fake.stub.Generate(asked(), timeout=0.3)
    await fake.started()
    assert (await failure(call)).code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: fake.engine.cancels)
    assert fake.engine.cancels[0].reason is FinishReason.TIMEOUT
    await until(lambda: not len(fake.service.registry))


async def test_a_connection_that_breaks_ends_its_requests(fake):
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{fake.port}", options=[("grpc.use_local_subchannel_pool", 1)])
    call = vllm_engine_pb2_grpc.VllmEngineStub(channel).Generate(asked())
    await fake.started()
    await channel.close()
    await until(lambda: fake.engine.cancels)
    call.cancel()


async def test_abort_ends_a_request_by_its_name(fake):
    call = fake.stub.Generate(asked(request_id="mine"))
    (first,) = await fake.started()
    other = fake.stub.Generate(asked(request_id="other"))
    _, second = await fake.started(2)
    await fake.stub.Abort(pb.AbortRequest(request_ids=["mine", "unknown"]))
    (last,) = [each async for each in call]
    assert last.complete.finish_reason == "abort"
    assert [each.request_id for each in fake.engine.cancels] == [first]
    fake.engine.answer(second, "x")
    assert [each async for each in other][-1].complete.finish_reason == "stop"


async def test_a_name_is_refused_while_a_request_of_that_name_runs(fake):
    call = fake.stub.Generate(asked(request_id="mine"))
    (request_id,) = await fake.started()
    error = await failure(fake.stub.Generate(asked(request_id="mine")))
    assert error.code() is grpc.StatusCode.ALREADY_EXISTS
    assert len(fake.engine.requests) == 1
    fake.engine.answer(request_id, "x")
    assert [each async for each in call]
    again = fake.stub.Generate(asked(request_id="mine"))
    await fake.started(2)
    again.cancel()


async def test_a_full_queue_is_exhausted_and_says_when_to_come_back():
    async with running(max_queued_requests=1) as fake:
        waiting = fake.stub.Generate(asked(request_id="a"))
        await fake.started()
        error = await failure(fake.stub.Generate(asked(request_id="b")))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert int(dict(error.trailing_metadata())["retry-after"]) >= 1
        assert "--max-queued-requests" in error.details()
        waiting.cancel()


async def test_a_server_that_loads_or_drains_is_unavailable_and_unhealthy():
    async with running(load=False) as fake:
        error = await failure(fake.stub.Generate(asked()))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert dict(error.trailing_metadata())["retry-after"] == "5"
        health = await fake.stub.HealthCheck(pb.HealthCheckRequest())
        assert not health.healthy
        assert "load" in health.message
        assert (await fake.stub.GetLoads(pb.GetLoadsRequest())).loads[0].max_running_requests == 0
    async with running() as fake:
        assert (await fake.stub.HealthCheck(pb.HealthCheckRequest())).healthy
        fake.service.draining = True
        fake.service.registry.admitting = False
        assert not (await fake.stub.HealthCheck(pb.HealthCheckRequest())).healthy
        assert (await failure(fake.stub.Generate(asked()))).code() is grpc.StatusCode.UNAVAILABLE


async def test_an_engine_that_is_lost_ends_requests_as_unavailable(fake):
    call = fake.stub.Generate(asked())
    (request_id,) = await fake.started()
    fake.engine.report(admitted=[(request_id, 0)])
    fake.engine.report(tokens={0: 65})
    await anext(aiter(call))
    for _ in range(2):
        fake.engine.die()
        await until(lambda: fake.service.session.lost.is_set())
        fake.service.session.lost.clear()
        fake.engine = await connect_engine(fake.service)
        fake.engine.send(READY)
        await until(lambda: fake.engine.requests or call.done())
        if fake.engine.requests:
            fake.engine.report(admitted=[(request_id, 0)])
            await until(lambda: fake.service.registry.unfinished()[0].had_slot)
    error = await failure(call)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "retry-after" in dict(error.trailing_metadata())


async def test_calls_need_a_key_and_probes_do_not():
    async with running(api_key=("secret",)) as fake:
        for metadata in ((), (("authorization", "Bearer wrong"),), (("x-api-key", "secre"),)):
            error = await failure(fake.stub.Generate(asked(), metadata=metadata))
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        info = await failure(fake.stub.GetTokenizer(common_pb2.GetTokenizerRequest()))
        assert info.code() is grpc.StatusCode.UNAUTHENTICATED
        assert not fake.engine.requests
        assert (await fake.stub.HealthCheck(pb.HealthCheckRequest())).healthy
        for metadata in ((("authorization", "Bearer secret"),), (("x-api-key", "secret"),)):
            assert (await fake.stub.GetModelInfo(pb.GetModelInfoRequest(), metadata=metadata)).vocab_size == 256


async def test_tenants_are_signed_as_over_http_and_abort_their_own_requests_only(tmp_path):
    key = tmp_path / "key"
    key.write_bytes(b"k" * 32)
    async with running(tenant_key_file=key) as fake:

        def signed(tenant, request_id="q"):
            return signature(b"k" * 32, tenant, request_id)

        for metadata in (
            (),
            ((TENANT_HEADER.lower(), "a"),),
            tuple((name, "b" if name == TENANT_HEADER.lower() else value) for name, value in signed("a")),
        ):
            for call in (fake.stub.Generate(asked(), metadata=metadata), fake.stub.Abort(pb.AbortRequest())):
                assert (await failure(call)).code() is grpc.StatusCode.UNAUTHENTICATED
        call = fake.stub.Generate(asked(request_id="mine"), metadata=signed("a"))
        (request_id,) = await fake.started()
        assert fake.engine.requests[request_id].scheduling.tenant == "a"
        await fake.stub.Abort(pb.AbortRequest(request_ids=["mine"]), metadata=signed("b"))
        assert not fake.engine.cancels
        await fake.stub.Abort(pb.AbortRequest(request_ids=["mine"]), metadata=signed("a"))
        assert [each async for each in call][-1].complete.finish_reason == "abort"


def signature(key, tenant, request_id):
    moment = str(int(time.time()))
    digest = hmac.digest(key, "\n".join([moment, tenant, request_id]).encode(), "sha256").hex()
    return (
        (TENANT_HEADER.lower(), tenant),
        ("x-request-id", request_id),
        (SIGNATURE_HEADER.lower(), f"v2={moment}:{digest}"),
    )


async def test_the_progress_of_relays_is_for_http_only(fake):
    error = await failure(fake.stub.Generate(asked(), metadata=(("x-inflight-progress", "1"),)))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not fake.engine.requests


async def test_answers_name_the_request(fake):
    call = fake.stub.GetModelInfo(pb.GetModelInfoRequest(), metadata=(("x-request-id", "q1"),))
    await call
    assert dict(await call.trailing_metadata())["x-request-id"] == "q1"
    error = await failure(fake.stub.Generate(asked(temperature=9), metadata=(("x-request-id", "q2"),)))
    assert dict(error.trailing_metadata())["x-request-id"] == "q2"


async def test_an_embedding_is_the_vector_of_its_prompt(fake):
    call = fake.stub.Embed(pb.EmbedRequest(request_id="e", tokenized=pb.TokenizedInput(input_ids=[1, 2, 3])))
    (request_id,) = await fake.started()
    assert fake.engine.requests[request_id].sampling.pooled
    fake.engine.report(admitted=[(request_id, 0)])
    fake.engine.report(pooled=[(0, [3.0, 4.0])], finished=[(request_id, FinishReason.LENGTH)])
    answer = await call
    assert [*answer.embedding] == pytest.approx([0.6, 0.8])
    assert (answer.prompt_tokens, answer.embedding_dim) == (3, 2)


async def test_an_embedding_that_is_aborted_is_cancelled(fake):
    call = fake.stub.Embed(pb.EmbedRequest(request_id="e", tokenized=pb.TokenizedInput(input_ids=[1])))
    await fake.started()
    await fake.stub.Abort(pb.AbortRequest(request_ids=["e"]))
    assert (await failure(call)).code() is grpc.StatusCode.CANCELLED


async def test_the_server_describes_model_limits_and_load(fake):
    model = await fake.stub.GetModelInfo(pb.GetModelInfoRequest())
    assert (model.max_context_length, model.vocab_size, model.served_model_name) == (100, 256, "fake")
    assert [*model.eos_token_ids] == [0]
    assert json.loads(model.default_sampling_params_json)["temperature"] == 1.0
    server = await fake.stub.GetServerInfo(pb.GetServerInfoRequest())
    assert (server.block_size, server.max_num_seqs, server.data_parallel_size) == (16, 4, 1)
    call = fake.stub.Generate(asked())
    (request_id,) = await fake.started()
    fake.engine.report(admitted=[(request_id, 0)], num_running=1, kv_usage=0.25)
    await until(lambda: fake.service.session.stats.num_running == 1)
    (load,) = (await fake.stub.GetLoads(pb.GetLoadsRequest())).loads
    assert (load.num_running_reqs, load.num_total_reqs, load.max_running_requests) == (1, 1, 4)
    assert (load.token_usage, load.num_used_tokens, load.max_total_num_tokens) == (0.25, 128, 512)
    call.cancel()


async def test_the_tokenizer_comes_as_an_archive_with_its_digest():
    tokenizer = _Saved()
    async with running(tokenizer=tokenizer) as fake:
        chunks = [each async for each in fake.stub.GetTokenizer(common_pb2.GetTokenizerRequest())]
        packed = b"".join(each.data for each in chunks)
        assert [each.sha256 for each in chunks] == [""] * (len(chunks) - 1) + [hashlib.sha256(packed).hexdigest()]
        assert len(chunks) > 1
        with zipfile.ZipFile(io.BytesIO(packed)) as files:
            assert files.read("tokenizer.json").decode() == tokenizer.serialized()
            assert json.loads(files.read("tokenizer_config.json"))["chat_template"] == "x"


@pytest.mark.parametrize("name", ["SubscribeKvEvents", "FlushCache", "StartProfile", "StopProfile"])
async def test_calls_that_are_not_served_say_so(fake, name):
    message = getattr(common_pb2, f"{name}Request")()
    error = await failure(getattr(fake.stub, name)(message))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert error.details().startswith(f"{name}: ")


async def test_a_port_that_is_taken_is_an_error_with_its_number(fake):
    with pytest.raises(OSError, match=f"port {fake.port} for gRPC"):
        await serve_grpc(type("Service", (), {"config": server_config(grpc_port=fake.port)})(), OpenResponses())
