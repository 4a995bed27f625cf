"""Handover of requests while an engine drains: what relays are told, what other engines read, and how long it waits."""

import asyncio
import hashlib
import hmac
import time

import pytest
from msgspec import structs

from inflight_contract.kv_blocks import MOST_BLOCKS, PATH, KVSource
from inflight_contract.model_blocks import SIGNATURE_HEADER
from inflight_engine.server.lifecycle import Lifecycle
from tests.base.virtual_time import in_virtual_time
from tests.engine.server import test_model_blocks
from tests.engine.server.fake_engine import READY, until
from tests.engine.server.test_model_blocks import POD, TOKEN
from tests.engine.server.test_progress_frames import HEADERS, relayed
from tests.engine.server.test_requests import start

pytestmark = pytest.mark.usefixtures("virtual_clock")

KEEPS = structs.replace(READY, runner=structs.replace(READY.runner, kv_identity="k", num_host_blocks=4))


@pytest.fixture(autouse=True)
def _pod(monkeypatch):
    monkeypatch.setenv("INFLIGHT_ADMIN_TOKEN", TOKEN.decode())
    monkeypatch.setenv("INFLIGHT_POD_UID", POD)


@pytest.fixture
def keeping(make_fake):
    async def make(**changes):
        fake = await make_fake(**changes)
        fake.service.session.ready = KEEPS
        fake.service.handover.port = 8001
        return fake

    return make


def leave(fake):
    fake.service.heartbeats.leave()


def name_of(client):
    notes = [note for notes, _ in client.frames for note in notes if note.startswith("d ")]
    assert len(notes) == 1
    return notes[0][2:]


@in_virtual_time
async def test_relays_are_told_once_in_a_frame_of_its_own_and_clients_are_not(keeping):
    fake = await keeping()
    client, other = relayed(fake, stream=True, temperature=0), start(fake, stream=True)
    await until(lambda: len(fake.engine.requests) == 2)
    fake.engine.report(admitted=[(0, 0)], tokens={0: 97})
    await until(lambda: "t 0 97" in client.text)
    leave(fake)
    assert client.frames[-1][1] is None
    words = name_of(client).split(" ")
    assert words[:2] == ["s:8001", POD]
    fake.engine.report(tokens={0: 98})
    await until(lambda: "t 0 98" in client.text)
    later = relayed(fake, temperature=0)
    await until(lambda: later.text)
    assert name_of(later).split(" ")[:2] == ["s:8001", POD]
    for request_id in fake.engine.requests:
        fake.engine.report(finished=[(request_id, "length")])
    await asyncio.gather(client.task, later.task)
    assert ":d" not in (await other).text
    name_of(client)


@pytest.mark.parametrize("lacks", ["host memory", "identity", "token", "pod"])
@in_virtual_time
async def test_an_engine_of_which_nothing_can_be_read_says_nothing(keeping, monkeypatch, lacks):
    fake = await keeping()
    changes = {"host memory": {"num_host_blocks": 0}, "identity": {"kv_identity": ""}}.get(lacks)
    if changes:
        fake.service.session.ready = structs.replace(KEEPS, runner=structs.replace(KEEPS.runner, **changes))
    else:
        monkeypatch.delenv("INFLIGHT_ADMIN_TOKEN" if lacks == "token" else "INFLIGHT_POD_UID")
    client = relayed(fake, stream=True, temperature=0)
    await until(lambda: client.text)
    leave(fake)
    assert client.frames == [(["h"], None)]
    client.left.set()
    await client.task


HANDS_OVER = {"x-inflight-hand-over": "1"}


@pytest.mark.parametrize("stream", [True, False])
@in_virtual_time
async def test_a_relay_that_asks_for_a_hand_over_is_told_behind_the_first_token(keeping, stream):
    fake = await keeping()
    client = relayed(fake, headers=HANDS_OVER, stream=stream, temperature=0)
    await until(lambda: fake.engine.requests)
    assert ":d" not in client.text
    fake.engine.report(admitted=[(0, 0, 3)], tokens={0: 97})
    await until(lambda: "t 0 97" in client.text)
    (told, name), data = client.frames[-1]
    assert (told, name.split(" ")[:3], data) == ("c 3", ["d", "s:8001", POD], None)
    fake.engine.report(tokens={0: 98})
    await until(lambda: "98" in client.text)
    name_of(client)
    client.left.set()
    await client.task


@pytest.mark.parametrize("ends", [True, False], ids=["of one token", "of which nothing can be read"])
@in_virtual_time
async def test_an_answer_is_not_handed_over_where_that_gives_nothing(keeping, make_fake, ends):
    fake = await (keeping() if ends else make_fake())
    client = relayed(fake, headers=HANDS_OVER, stream=True, temperature=0)
    await until(lambda: fake.engine.requests)
    fake.engine.report(admitted=[(0, 0)], tokens={0: 97}, finished=[(0, "length")] if ends else [])
    await until(lambda: "t 0 97" in client.text)
    assert ":d" not in client.text
    client.left.set()
    await client.task


@in_virtual_time
async def test_an_engine_that_drains_tells_a_relay_at_once_that_asks_for_a_hand_over(keeping):
    fake = await keeping()
    leave(fake)
    client = relayed(fake, headers=HANDS_OVER, stream=True, temperature=0)
    await until(lambda: ":d" in client.text)
    await until(lambda: fake.engine.requests)
    fake.engine.report(admitted=[(0, 0, 3)], tokens={0: 97})
    await until(lambda: "t 0 97" in client.text)
    name_of(client)
    assert client.text.index(":d") < client.text.index(":t")
    assert ":c" not in client.text
    client.left.set()
    await client.task


@in_virtual_time
async def test_several_prompts_are_handed_over_once_each_is_computed(keeping):
    fake = await keeping()
    client = relayed(fake, headers=HANDS_OVER, prompt=["a", "b"], stream=True, temperature=0)
    await until(lambda: len(fake.engine.requests) == 2)
    fake.engine.report(admitted=[(0, 0, 1)], tokens={0: 97})
    await until(lambda: "t 0 97" in client.text)
    assert ":d" not in client.text
    fake.engine.report(admitted=[(1, 1, 1)], tokens={1: 98})
    await until(lambda: ":d" in client.text)
    assert ":c 2\n" in client.text
    client.left.set()
    await client.task


@in_virtual_time
async def test_the_engine_that_goes_on_says_what_the_first_one_had_cached(keeping):
    fake = await keeping()
    body = continued(None)
    body["inflight_continuation"]["cached_tokens"] = 2
    answer, _ = await answered(fake, body, HEADERS)
    assert '"cached_tokens":2' in answer.text
    body["inflight_continuation"]["cached_tokens"] = 2**40
    assert '"cached_tokens":5' in (await answered(fake, body, HEADERS))[0].text, "the prompt has no more"


def continued(source):
    choice = {"token_ids": [97], "seed": None, "finish_reason": None}
    return {"prompt": "hello", "inflight_continuation": {"choices": [choice], "created": 1, "source": source}}


async def answered(fake, body, headers=None):
    """The answer of a request, and the engine that its keys and values are read from."""
    number = len(fake.engine.requests)
    call = asyncio.create_task(fake.http.post("/v1/completions", json=body, headers=headers))
    await until(lambda: len(fake.engine.requests) > number)
    fake.engine.report(admitted=[(number, 0)], finished=[(number, "length")])
    return await call, fake.engine.requests[number].kv_source


async def source_at_the_engine(fake, source):
    return (await answered(fake, continued(source), HEADERS))[1]


@in_virtual_time
async def test_the_engine_reads_from_a_source_of_its_own_service_only(keeping, monkeypatch):
    fake = await keeping()
    monkeypatch.setenv("INFLIGHT_POD_UID", "uid-2")
    theirs = fake.service.handover.source("10.0.0.2")
    monkeypatch.setenv("INFLIGHT_POD_UID", POD)
    assert await source_at_the_engine(fake, theirs) == KVSource("10.0.0.2:8001", "uid-2")
    for wrong in (None, "", "x", theirs.replace("10.0.0.2", "10.0.0.3"), fake.service.handover.source("10.0.0.1")):
        assert await source_at_the_engine(fake, wrong) is None
    answer = await fake.http.post("/v1/completions", json=continued("x" * 513), headers=HEADERS)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "inflight_continuation.source")


async def transferred(fake, params):
    """The body of the answer to a router, and the engine that the keys and values are read from."""
    answer, source = await answered(fake, {"prompt": "hello", "max_tokens": 1, "kv_transfer_params": params})
    return answer.json(), source


@in_virtual_time
async def test_a_router_has_one_engine_compute_the_prompt_and_another_one_the_answer(keeping, monkeypatch):
    fake = await keeping()
    body, _ = await transferred(fake, {"do_remote_decode": True, "remote_engine_id": None})
    told = body["kv_transfer_params"]
    assert (told["do_remote_prefill"], told["do_remote_decode"]) == (True, False)
    assert (told["remote_host"], told["remote_port"], told["tp_size"]) == ("engine", 8001, 1)
    monkeypatch.setenv("INFLIGHT_POD_UID", "uid-2")
    body, source = await transferred(fake, {**told, "of_a_later_version": 1})
    assert source == KVSource("engine:8001", POD)
    assert "kv_transfer_params" not in body
    forged = told["remote_engine_id"].replace("engine:8001", "10.0.0.3:80")
    for wrong in ({"remote_engine_id": forged}, {"do_remote_prefill": False}, {"remote_engine_id": None}):
        assert (await transferred(fake, {**told, **wrong}))[1] is None


@in_virtual_time
async def test_who_cannot_read_this_engine_gets_no_name_of_it(keeping, monkeypatch):
    fake = await keeping()
    wanted = {"do_remote_decode": True}
    client = relayed(fake, temperature=0, kv_transfer_params=wanted)
    await until(lambda: fake.engine.requests)
    fake.engine.report(admitted=[(0, 0)], tokens={0: 97}, finished=[(0, "length")])
    await client.task
    assert "kv_transfer" not in client.text, "the clients of a relay"
    monkeypatch.delenv("INFLIGHT_POD_UID")
    assert (await transferred(fake, wanted))[0]["kv_transfer_params"] is None
    refused = await fake.http.post(
        "/v1/completions", json={"prompt": "a", "kv_transfer_params": {"do_remote_decode": 1}}
    )
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "kv_transfer_params.do_remote_decode"


def signed(body):
    """Returns the header and the signature of a read."""
    header, signature = test_model_blocks.signed("POST", PATH, body)
    return {"authorization": header}, signature


@in_virtual_time
async def test_a_read_gives_checksums_and_blocks_and_proves_the_checksums(keeping, tmp_path):
    fake = await keeping(admin_port=8001)
    (tmp_path / "blocks").write_bytes(b"data, and of an earlier one")
    fake.engine.blocks = b"c" * 16, str(tmp_path / "blocks"), 4
    hashes = bytes(range(48))
    headers, signature = signed(hashes)
    answer = await fake.admin.post(PATH, content=hashes, headers=headers)
    assert (answer.status_code, answer.content, fake.engine.reads) == (200, b"c" * 16 + b"data", [hashes])
    content = f"content\n{signature}\n{hashlib.sha256(b'c' * 16).hexdigest()}"
    assert answer.headers[SIGNATURE_HEADER] == hmac.new(TOKEN, content.encode(), "sha256").hexdigest()
    assert (await fake.http.post(PATH, content=hashes, headers=headers)).status_code == 404, "the serving port"


@pytest.mark.parametrize("body", [b"", b"x" * 15, b"x" * 17, b"x" * 16 * (MOST_BLOCKS + 1)], ids=len)
@in_virtual_time
async def test_a_read_of_something_else_than_hashes_is_400(keeping, body):
    fake = await keeping(admin_port=8001)
    assert (await fake.admin.post(PATH, content=body, headers=signed(body)[0])).status_code == 400
    assert fake.engine.reads == []


@in_virtual_time
async def test_strangers_read_nothing(keeping):
    fake = await keeping(admin_port=8001)
    body = bytes(16)
    for headers in ({}, {"authorization": "Bearer other"}, signed(b"other")[0]):
        assert (await fake.admin.post(PATH, content=body, headers=headers)).status_code == 401
    assert fake.engine.reads == []


@in_virtual_time
async def test_an_engine_without_host_memory_gives_nothing(keeping):
    fake = await keeping(admin_port=8001)
    fake.service.session.ready = READY
    answer = await fake.admin.post(PATH, content=bytes(16), headers=signed(bytes(16))[0])
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_host_memory")


@in_virtual_time
async def test_it_waits_until_nobody_has_read_for_half_a_second_but_not_for_ever(keeping):
    fake = await keeping()
    fake.engine.blocks = b"", "/dev/null", 0
    handover, loop = fake.service.handover, asyncio.get_running_loop()
    began = loop.time()
    await handover.settled()
    assert loop.time() == began, "nobody knows it as a source"
    handover.source("10.0.0.1")
    await handover.settled()
    assert loop.time() - began == pytest.approx(0.5)

    async def read(seconds):
        for _ in range(int(seconds / 0.4)):
            await handover.read(bytes(16))
            await asyncio.sleep(0.4)

    for seconds, expected in ((1.2, 1.3), (12.0, 5.0)):
        reading, began = asyncio.create_task(read(seconds)), loop.time()
        await asyncio.sleep(0)
        await handover.settled()
        assert loop.time() - began == pytest.approx(expected, abs=0.5)
        reading.cancel()


@pytest.mark.parametrize(
    ("relayed_ago", "direct_ago", "delay"),
    [(None, None, 5.0), (10, None, 1.0), (70, None, 5.0), (10, 30, 5.0), (10, 70, 1.0)],
)
@in_virtual_time
async def test_new_requests_are_taken_for_a_second_where_all_came_from_relays(keeping, relayed_ago, direct_ago, delay):
    fake = await keeping(drain_delay=5.0)
    registry = fake.service.registry
    if relayed_ago is not None:
        registry.relayed_at = time.monotonic() - relayed_ago
    if direct_ago is not None:
        registry.direct_at = time.monotonic() - direct_ago
    assert Lifecycle(fake.service, None, None)._delay() == delay


@in_virtual_time
async def test_the_registry_knows_when_requests_came_and_from_whom(keeping):
    fake = await keeping()
    registry = fake.service.registry
    client = relayed(fake, temperature=0)
    await until(lambda: fake.engine.requests)
    assert registry.relayed_at > registry.direct_at
    call = start(fake)
    await until(lambda: len(fake.engine.requests) == 2)
    assert registry.direct_at >= registry.relayed_at
    fake.engine.report(finished=[(0, "length"), (1, "length")])
    await asyncio.gather(client.task, call)
