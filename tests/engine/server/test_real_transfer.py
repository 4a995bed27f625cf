"""Two real engines behind a router that has one compute prompts and the other one the answers, as vLLM's routers do."""

import re

import grpc
import httpx
import pytest
from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from smg_grpc_proto.generated import vllm_engine_pb2_grpc

from tests.engine.server.real_server import RealServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FLAGS = (
    "--dtype float32 --max-num-seqs 4 --max-num-batched-tokens 512 --max-model-len 512 --num-kv-blocks 100 "
    "--swap-space 100Mi --preemption swap --grpc-port 0"
)
WANTED = '{"do_remote_decode": true, "do_remote_prefill": false}'


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """The one for prompts, the one for answers."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        servers = []
        for number in range(2):
            monkeypatch.setenv("INFLIGHT_POD_UID", f"uid-{number}")
            servers.append(RealServer(tmp_path_factory.mktemp("engine"), *FLAGS.split()))
    try:
        yield [server.wait_ready() for server in servers]
    finally:
        for server in servers:
            server.close()


def prompt(kind):
    """Return 13 full blocks and a part of one."""
    return [(number * 7919 + kind) % 40_000 + 100 for number in range(213)]


def ask(server, **body):
    asked = {"prompt": prompt(0), "temperature": 0, "max_tokens": 24, "ignore_eos": True, "return_token_ids": True}
    answer = httpx.post(f"{server.url}/v1/completions", json={**asked, **body}, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def loaded(server):
    return server.metrics()["inflight_peer_loaded_blocks_total"]


def test_over_http_the_answer_equals_that_of_one_engine_and_no_full_block_is_computed_again(engines):
    first, second = engines
    alone, before = ask(first)["choices"][0]["token_ids"], loaded(second)
    told = ask(first, max_tokens=1, kv_transfer_params={"do_remote_decode": True})["kv_transfer_params"]
    found = ask(second, kv_transfer_params=told)
    assert found["choices"][0]["token_ids"] == alone
    assert found["usage"]["prompt_tokens_details"]["cached_tokens"] == 13 * 16
    assert loaded(second) == before + 13


async def test_over_grpc_the_answer_equals_that_of_one_engine_and_no_full_block_is_computed_again(engines):
    def message(kv_transfer_params=None, **sampling):
        params = pb.SamplingParams(temperature=0, ignore_eos=True, **{"max_tokens": 24, **sampling})
        tokens = pb.TokenizedInput(original_text="", input_ids=prompt(2))
        return pb.GenerateRequest(tokenized=tokens, sampling_params=params, kv_transfer_params_json=kv_transfer_params)

    async def complete(server, asked):
        port = re.search(r"gRPC on .* port (\d+)", server.log.read_text())[1]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)
            info = await stub.GetServerInfo(pb.GetServerInfoRequest())
            assert info.kv_connector == "NixlConnector"
            *_, last = [each async for each in stub.Generate(asked, timeout=120)]
            return last.complete

    first, second = engines
    before = loaded(second)
    alone = await complete(first, message())
    assert not alone.HasField("kv_transfer_params_json")
    prefilled = await complete(first, message(WANTED, max_tokens=1))
    found = await complete(second, message(prefilled.kv_transfer_params_json))
    assert [*found.output_ids] == [*alone.output_ids]
    assert (found.cached_tokens, loaded(second)) == (13 * 16, before + 13)


def test_with_a_forged_name_or_the_first_engine_gone_the_second_one_computes(engines):
    first, second = engines
    asked = [{"prompt": prompt(kind)} for kind in (3, 4, 5)]
    alone = [ask(first, **each)["choices"][0]["token_ids"] for each in asked]
    told = ask(first, **asked[0], kv_transfer_params={"do_remote_decode": True})["kv_transfer_params"]
    name, before = told["remote_engine_id"], loaded(second)
    forged = {**told, "remote_engine_id": name[:-1] + ("0" if name[-1] != "0" else "1")}
    assert ask(second, **asked[0], kv_transfer_params=forged)["choices"][0]["token_ids"] == alone[0]
    assert loaded(second) == before
    assert ask(second, **asked[1], kv_transfer_params=told)["choices"][0]["token_ids"] == alone[1]
    assert loaded(second) == before + 13, "a name is good for any prompt"
    first.close()
    assert ask(second, **asked[2], kv_transfer_params=told)["choices"][0]["token_ids"] == alone[2]
    assert second.metrics()["inflight_peer_failed_reads_total"] >= 1
    assert loaded(second) == before + 13
