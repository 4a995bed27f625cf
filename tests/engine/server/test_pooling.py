"""Embeddings, scores and ranks: each input is a request of its own that ends with its prefill."""

import asyncio
import json
from base64 import b64decode

import numpy as np
import openai
import pytest

from inflight_engine.models.checkpoints.pooling_config import PoolingConfig, read_pooling
from inflight_engine.models.checkpoints.source import ModelFiles
from inflight_engine.request import FinishReason
from inflight_settings.engine import EngineConfig
from inflight_settings.scheduling import ServiceClass
from tests.engine.server.fake_engine import ByteTokenizer, until

EMBEDDINGS = "/v1/embeddings"
UNIT = {0: [3.0, 4.0, 0.0], 1: [0.0, 2.0, 0.0], 2: [1.0, 0.0, 0.0]}


def start(fake, path=EMBEDDINGS, headers=None, **body):
    return asyncio.create_task(fake.http.post(path, json=body, headers=headers))


async def pooled(fake, vectors, first=0):
    """The engine answers with these vectors, the last request's first."""
    await until(lambda: len(fake.engine.requests) >= first + len(vectors))
    for number, vector in reversed([*enumerate(vectors, first)]):
        slot = number % 4
        fake.engine.report(
            admitted=[(number, slot)],
            tokens={slot: 97},
            pooled=[(slot, vector)],
            finished=[(number, FinishReason.LENGTH)],
        )


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("ab", [b"ab"]),
        (["ab", "c"], [b"ab", b"c"]),
        ([97, 98], [b"ab"]),
        ([[97, 98], [99]], [b"ab", b"c"]),
    ],
)
async def test_inputs_of_all_forms_are_requests_that_end_with_their_prefill(make_fake, given, prompts):
    fake = await make_fake()
    call = start(fake, input=given, model="fake", user="u")
    await pooled(fake, [UNIT[0], UNIT[1]][: len(prompts)])
    requests = [fake.engine.requests[i] for i in range(len(prompts))]
    assert [bytes(each.prompt_token_ids[::4]) for each in requests] == prompts
    assert all(each.sampling.pooled and each.sampling.max_tokens == 1 for each in requests)
    answer = (await call).json()
    assert [each["index"] for each in answer["data"]] == [*range(len(prompts))]
    assert answer["data"][0]["embedding"] == pytest.approx([0.6, 0.8, 0.0])
    count = sum(map(len, prompts))
    assert (answer["object"], answer["model"]) == ("list", "fake")
    assert answer["usage"] == {"prompt_tokens": count, "total_tokens": count}


async def test_base64_is_that_of_the_floats(make_fake):
    fake = await make_fake()
    call = start(fake, input="ab", encoding_format="base64")
    await pooled(fake, [UNIT[0]])
    encoded = (await call).json()["data"][0]["embedding"]
    assert np.frombuffer(b64decode(encoded), "<f4") == pytest.approx([0.6, 0.8, 0.0])


async def test_vectors_are_shortened_and_normalized_as_asked_for_and_as_the_model_allows(make_fake):
    tokenizer = ByteTokenizer()
    tokenizer.pooling = PoolingConfig(dimensions=(2,), normalized=False)
    fake = await make_fake(tokenizer=tokenizer)
    call = start(fake, input="ab", dimensions=2, use_activation=True)
    await pooled(fake, [[3.0, 4.0, 5.0]])
    assert (await call).json()["data"][0]["embedding"] == pytest.approx([0.6, 0.8])
    plain = start(fake, input="ab")
    await pooled(fake, [[3.0, 4.0, 5.0]], first=1)
    assert (await plain).json()["data"][0]["embedding"] == [3.0, 4.0, 5.0]
    refused = await fake.post(EMBEDDINGS, input="ab", dimensions=3)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "dimensions")


@pytest.mark.parametrize(
    ("config", "served", "refused", "possible"),
    [
        ({"is_matryoshka": True}, (1, 2, 4), (5, 10**30), "1 to 4"),
        ({"matryoshka_dimensions": [2, 4]}, (2, 4), (1, 3, 5), "2, 4"),
        ({}, (), (1, 2, 4, 5), "none"),
    ],
)
@pytest.mark.parametrize("modules", [False, True])
async def test_vectors_are_shortened_to_lengths_that_the_models_configuration_has(
    make_fake, tmp_path, config, served, refused, possible, modules
):
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 4, **config}))
    if modules:
        (tmp_path / "modules.json").write_text('[{"type": "sentence_transformers.models.Normalize"}]')
    tokenizer = ByteTokenizer()
    tokenizer.pooling = read_pooling(ModelFiles("m", tmp_path))
    fake = await make_fake(tokenizer=tokenizer)
    for number, dimensions in enumerate(served):
        call = start(fake, input="ab", dimensions=dimensions)
        await pooled(fake, [[3.0, 4.0, 0.0, 12.0]], first=number)
        vector = (await call).json()["data"][0]["embedding"]
        assert (len(vector), np.linalg.norm(vector)) == (dimensions, pytest.approx(1.0))
    for dimensions in refused:
        error = (await fake.post(EMBEDDINGS, input="ab", dimensions=dimensions)).json()["error"]
        assert (error["param"], error["message"].rpartition("possible: ")[2]) == ("dimensions", possible)


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2")])
async def test_a_score_is_the_cosine_of_a_pair(make_fake, path, names):
    fake = await make_fake()
    call = start(fake, path, **{names[0]: "a", names[1]: ["b", "c"]})
    await pooled(fake, [UNIT[0], UNIT[1], UNIT[2]])
    answer = (await call).json()
    assert [(each["index"], each["object"]) for each in answer["data"]] == [(0, "score"), (1, "score")]
    assert [each["score"] for each in answer["data"]] == pytest.approx([0.8, 0.6])
    assert answer["usage"] == {"prompt_tokens": 3, "total_tokens": 3}


async def test_as_many_texts_on_both_sides_are_pairs(make_fake):
    fake = await make_fake()
    call = start(fake, "/score", text_1=["a", "b"], text_2=["c", "d"])
    await pooled(fake, [UNIT[0], UNIT[1], UNIT[2], UNIT[1]])
    assert [each["score"] for each in (await call).json()["data"]] == pytest.approx([0.6, 1.0])


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
@pytest.mark.parametrize("top_n", [0, 1, 9])
async def test_documents_are_ranked_by_their_scores(make_fake, path, top_n):
    fake = await make_fake()
    call = start(fake, path, query="q", documents=["low", "high", "low too"], top_n=top_n)
    await pooled(fake, [UNIT[0], UNIT[2], UNIT[1], UNIT[2]])
    results = (await call).json()["results"]
    assert [each["index"] for each in results] == [1, 0, 2][: top_n or None]
    assert results[0] == {"index": 1, "document": {"text": "high"}, "relevance_score": pytest.approx(0.8)}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (EMBEDDINGS, {}, "input"),
        (EMBEDDINGS, {"input": []}, "input"),
        (EMBEDDINGS, {"input": ""}, "input"),
        (EMBEDDINGS, {"input": ["a", ""]}, "input"),
        (EMBEDDINGS, {"input": [[1], []]}, "input"),
        (EMBEDDINGS, {"input": [256]}, "input"),
        (EMBEDDINGS, {"input": "x" * 100}, "input"),
        (EMBEDDINGS, {"input": "a", "encoding_format": "int8"}, "encoding_format"),
        (EMBEDDINGS, {"input": "a", "dimensions": 2}, "dimensions"),
        (EMBEDDINGS, {"input": "a", "stream": True}, "stream"),
        (EMBEDDINGS, {"input": "a", "class": "none"}, "class"),
        ("/score", {"text_1": "a"}, "text_1"),
        ("/score", {"text_1": "a", "documents": "b"}, "text_1"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        ("/rerank", {"query": "a"}, "documents"),
        ("/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, "top_n"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(make_fake, path, body, param):
    fake = await make_fake()
    answer = await fake.post(path, **body)
    assert (answer.status_code, answer.json()["error"]["param"].partition(".")[0]) == (400, param), answer.text


async def test_another_model_is_404_and_one_that_pools_otherwise_400(make_fake):
    tokenizer = ByteTokenizer()
    tokenizer.pooling = PoolingConfig(refusal="this model pools by mean")
    fake = await make_fake(tokenizer=tokenizer)
    assert (await fake.post(EMBEDDINGS, input="a", model="other")).status_code == 404
    answer = await fake.post(EMBEDDINGS, input="a")
    assert (answer.status_code, "by mean" in answer.text) == (400, True)


async def test_truncation_keeps_the_beginning(make_fake):
    fake = await make_fake()
    call = start(fake, input="hello", truncate_prompt_tokens=2)
    await pooled(fake, [UNIT[0]])
    assert bytes(fake.engine.requests[0].prompt_token_ids[::4]) == b"he"
    assert (await call).status_code == 200


async def test_a_client_that_leaves_cancels_all_of_its_inputs(make_fake):
    fake = await make_fake()
    call = start(fake, input=["a", "b", "c"])
    await until(lambda: len(fake.engine.requests) == 3)
    call.cancel()
    await until(lambda: len(fake.engine.cancels) == 3)


LISTS = [
    (EMBEDDINGS, lambda texts: {"input": texts}, 0),
    ("/v1/score", lambda texts: {"text_1": "q", "text_2": texts}, 1),
    ("/v1/rerank", lambda texts: {"query": "q", "documents": texts}, 1),
]


@pytest.mark.parametrize(("path", "body", "more"), LISTS)
async def test_a_list_longer_than_the_queue_takes_half_of_it_and_the_rest_follows(make_fake, path, body, more):
    fake = await make_fake(max_queued_requests=6)
    count, waiting = 20 + more, fake.service.admission.waiting
    call = start(fake, path, **body([str(i) for i in range(20)]))
    for ended in range(count):
        sent = min(count, ended + 3)
        await until(lambda sent=sent: len(fake.engine.requests) == sent)
        await until(lambda left=sent - ended: waiting.num_requests == left)
        await pooled(fake, [[1.0, float(ended), 0.0]], first=ended)
    assert (await call).status_code == 200
    assert waiting.num_tokens == 0
    assert len(fake.engine.requests) == count
    answer = (await call).json()
    assert len(answer["data"] if "data" in answer else answer["results"]) == 20


async def test_inputs_of_a_long_list_follow_in_the_places_of_those_that_run_and_take_no_others(make_fake):
    fake = await make_fake(max_queued_requests=4)
    waiting = fake.service.admission.waiting
    calls = [start(fake, input=["a"] * 9)]
    await until(lambda: len(fake.engine.requests) == 2)
    fake.engine.report(admitted=[(0, 0), (1, 1)])
    await until(lambda: len(fake.engine.requests) == 4)
    calls += [start(fake, input="a") for _ in range(2)]
    await until(lambda: waiting.num_requests == 4)
    fake.engine.report(finished=[(0, FinishReason.LENGTH), (1, FinishReason.LENGTH)])
    await until(lambda: len(fake.service.registry) == 4)
    assert (await fake.post(EMBEDDINGS, input="a")).status_code == 503
    assert (waiting.num_requests, len(fake.engine.requests)) == (4, 6)
    for call in calls:
        call.cancel()


async def test_each_input_of_a_long_list_gets_its_own_vector(make_fake):
    fake = await make_fake(max_queued_requests=2)
    call = start(fake, input=[str(i) for i in range(5)])
    for number in range(5):
        await pooled(fake, [[1.0, float(number), 0.0]], first=number)
    vectors = [each["embedding"] for each in (await call).json()["data"]]
    assert [round(b / a) for a, b, _ in vectors] == [*range(5)]


async def test_half_of_the_queue_of_a_class_bounds_its_lists_too(make_fake):
    classes = (ServiceClass("all"), ServiceClass("few", max_queued_requests=5))
    fake = await make_fake(engine=EngineConfig("fake", classes=classes), max_queued_requests=8)
    calls = [start(fake, input=["a"] * 9, **{"class": name}) for name in ("few", "all")]
    await until(lambda: len(fake.engine.requests) == 2 + 4)
    for call in calls:
        call.cancel()


async def test_a_list_that_finds_its_part_of_the_queue_taken_is_refused_whole(make_fake):
    fake = await make_fake(max_queued_requests=4)
    first = [start(fake, input="a") for _ in range(3)]
    await until(lambda: len(fake.engine.requests) == 3)
    refused = await fake.post(EMBEDDINGS, input=["a"] * 9)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "queue_full")
    await pooled(fake, [UNIT[0]] * 3)
    assert {(await call).status_code for call in first} == {200}
    assert len(fake.engine.requests) == 3


async def test_tokens_of_inputs_that_follow_later_are_bounded_too(make_fake):
    fake = await make_fake(max_queued_requests=2, max_queued_tokens=10)
    refused = await fake.post(EMBEDDINGS, input=["abc"] * 4)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "input")
    assert "12 prompt tokens" in error["message"]
    call = start(fake, input=["abc"] * 3)
    await until(lambda: len(fake.engine.requests) == 1)
    assert (await fake.post(EMBEDDINGS, input="ab")).status_code == 503
    call.cancel()
    await until(lambda: fake.service.admission.waiting.num_tokens == 0)


async def test_a_client_that_leaves_takes_along_what_has_not_been_sent(make_fake):
    fake = await make_fake(max_queued_requests=4)
    call = start(fake, input=["a"] * 9)
    await until(lambda: len(fake.engine.requests) == 2)
    call.cancel()
    await until(lambda: len(fake.engine.cancels) == 2)
    await until(lambda: not len(fake.service.registry))
    assert len(fake.engine.requests) == 2
    assert fake.service.admission.waiting.num_tokens == 0


async def test_the_first_input_that_fails_ends_its_list(make_fake):
    fake = await make_fake(max_queued_requests=4)
    call = start(fake, input=["a"] * 9)
    await until(lambda: len(fake.engine.requests) == 2)
    fake.engine.report(finished=[(0, FinishReason.OUT_OF_MEMORY)])
    assert ((await call).status_code, (await call).json()["error"]["code"]) == (503, "out_of_memory")
    await until(lambda: not len(fake.service.registry))
    assert len(fake.engine.requests) == 2
    assert fake.service.admission.waiting.num_tokens == 0


@pytest.mark.parametrize(("path", "body", "more"), LISTS)
async def test_a_list_has_at_most_2048_inputs(make_fake, path, body, more):
    fake = await make_fake()
    assert (await fake.post(path, **body(["a"] * 2049))).status_code == 400
    call = start(fake, path, **body(["a"] * 2048))
    await until(lambda: fake.engine.requests)
    call.cancel()


async def test_a_relay_gets_the_answer_as_a_frame_and_may_ask_again(make_fake):
    fake = await make_fake()
    before = {"choices": [{"token_ids": [], "finish_reason": "length"}, {"token_ids": []}], "created": 1}
    call = start(fake, headers={"X-Inflight-Progress": "1"}, input=["ab", "c"], inflight_continuation=before)
    await pooled(fake, [UNIT[0], UNIT[1]])
    frames = (await call).text.split("\n\n")
    assert not any("f 0" in frame for frame in frames)
    (frame,) = (frame for frame in frames if ":w 200" in frame)
    assert ":f 1 length" in "".join(frames)
    assert ':u {"prompt_tokens":3,"cached_tokens":0,"completion_tokens":0}' in frame
    assert len(json.loads(frame.split("data: ")[1])["data"]) == 2


@pytest.mark.slow
def test_the_sdk_gets_equal_vectors_alone_and_in_company(server):
    sdk = openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)
    texts = ["A cat sat on the mat.", "Quantum field theory", "A kitten sits on a rug. " * 20]
    together = [each.embedding for each in sdk.embeddings.create(model="smollm2", input=texts).data]
    for text, vector in zip(texts, together, strict=True):
        alone = sdk.embeddings.create(model="smollm2", input=text, encoding_format="float").data[0].embedding
        assert alone == pytest.approx(vector, abs=1e-5)
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)


@pytest.mark.slow
def test_a_list_longer_than_the_queue_gets_all_of_its_vectors_from_a_real_engine(server):
    sdk = openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)
    texts = [f"Text {number}" for number in range(100)]  # the queue has 64 places
    together = [each.embedding for each in sdk.embeddings.create(model="smollm2", input=texts).data]
    assert len(together) == 100
    for place in (0, 31, 32, 99):
        alone = sdk.embeddings.create(model="smollm2", input=texts[place]).data[0].embedding
        assert alone == pytest.approx(together[place], abs=1e-5)
