"""Blocks of weights for peers: who gets them, and that this engine's own requests keep their target."""

import asyncio
import hashlib
import hmac
import time

import pytest
from msgspec import structs

from inflight_engine.messages import WeightsRead
from inflight_engine.server.admin import model_blocks
from inflight_engine.server.admission import peer_reads
from inflight_engine.server.engine.session import NO_STATS
from inflight_settings.engine import EngineConfig
from inflight_settings.scheduling import ServiceClass
from tests.engine.server.fake_engine import READY, until

TOKEN, POD = b"secret", "11111111-2222-3333-4444-555555555555"
PATH = "/admin/model-blocks/entry/7"
CONTENT = bytes(range(256)) * 4096
SHARING = EngineConfig(
    "fake",
    model_cache="folder",
    model_cache_size=1,
    peers_file="file",
    classes=(ServiceClass("a", tpot_target=0.05), ServiceClass("b")),
)


class Block:
    """A stand-in for a block in a model cache."""

    size, checksums = len(CONTENT), "ab" * 16

    def part(self, start, count):
        return CONTENT[start : start + count]


class Blocks:
    """A stand-in for those of a model: `there` says whether block 7 is here."""

    there = True

    def find(self, entry, number):
        return Block() if self.there and (entry, number) == ("entry", 7) else None


@pytest.fixture(autouse=True)
def _pod(monkeypatch):
    monkeypatch.setenv("INFLIGHT_ADMIN_TOKEN", TOKEN.decode())
    monkeypatch.setenv("INFLIGHT_POD_UID", POD)


@pytest.fixture
def sharing(make_fake):
    async def make(**changes):
        fake = await make_fake(engine=SHARING, **changes)
        fake.service.shared_blocks = Blocks()
        return fake

    return make


def signed(method="GET", path=PATH, body=b""):
    """The header and the signature. Made here from the protocol's text, not by its code."""
    seconds = str(int(time.time()))
    lines = (method, path, POD, seconds, hashlib.sha256(body).hexdigest())
    signature = hmac.new(TOKEN, "\n".join(lines).encode(), "sha256").hexdigest()
    return f"Inflight-HMAC-SHA256 pod={POD},time={seconds},signature={signature}", signature


async def ask(fake, method="GET", path=PATH):
    return await fake.admin.request(method, path, headers={"authorization": signed(method, path)[0]})


def step(fake, **stats):
    fake.service.session.stats = structs.replace(NO_STATS, **stats)


async def test_a_block_comes_with_checksums_that_the_token_signs(sharing):
    fake = await sharing()
    header, signature = signed()
    answer = await fake.admin.get(PATH, headers={"authorization": header})
    assert (answer.status_code, answer.content) == (200, CONTENT)
    assert answer.headers["inflight-checksums"] == Block.checksums
    proof = hmac.new(TOKEN, f"content\n{signature}\n{Block.checksums}".encode(), "sha256").hexdigest()
    assert answer.headers["inflight-checksums-proof"] == proof
    assert fake.service.peer_reads.sent_bytes == len(CONTENT)


async def test_strangers_get_nothing(sharing):
    fake = await sharing(admin_port=8001)
    for headers in ({}, {"authorization": "Bearer other"}, {"authorization": signed(path="/admin/drain")[0]}):
        assert (await fake.admin.get(PATH, headers=headers)).status_code == 401
    assert (await fake.http.get(PATH, headers={"authorization": signed()[0]})).status_code == 404, "not that port"


async def test_without_a_file_of_peers_nothing_is_shared(make_fake):
    fake = await make_fake()
    assert (await ask(fake)).json()["error"]["code"] == "no_peers"


@pytest.mark.parametrize(("path", "status"), [(f"{PATH}8", 404), ("/admin/model-blocks/entry/-1", 400)])
async def test_a_block_that_a_loaded_engine_does_not_have_is_404_at_once(sharing, path, status, monkeypatch):
    monkeypatch.setattr(model_blocks, "_WAIT_SECONDS", 60.0)
    fake = await sharing()
    for method in ("GET", "HEAD"):
        assert (await ask(fake, method, path)).status_code == status


async def test_while_the_model_loads_head_waits_for_the_block_and_get_does_not(sharing, monkeypatch):
    monkeypatch.setattr(model_blocks, "_WAIT_SECONDS", 60.0)
    monkeypatch.setattr(model_blocks, "_LOOK_SECONDS", 0.001)
    fake = await sharing(load=False)
    fake.service.shared_blocks.there = False
    assert (await ask(fake)).status_code == 425
    waiting = asyncio.create_task(ask(fake, "HEAD"))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    fake.service.shared_blocks.there = True
    assert (await waiting).status_code == 200
    monkeypatch.setattr(model_blocks, "_WAIT_SECONDS", 0.01)
    fake.service.shared_blocks = None  # the model is not even resolved
    assert (await ask(fake, "HEAD")).status_code == 425


async def test_beyond_the_reads_at_once_peers_wait_and_then_get_503(sharing, monkeypatch):
    monkeypatch.setattr(peer_reads, "_WAIT_SECONDS", 0.02)
    fake = await sharing()
    reads = fake.service.peer_reads
    for _ in range(peer_reads.MOST_READS):
        await reads.begin()
    refused = await ask(fake)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert reads.refused == 1
    monkeypatch.setattr(peer_reads, "_WAIT_SECONDS", 30.0)
    waiting = [asyncio.create_task(ask(fake)) for _ in range(peer_reads.MOST_WAITING)]
    await until(lambda: reads._waiting == peer_reads.MOST_WAITING)
    assert (await ask(fake)).status_code == 503, "at once"
    reads.end()
    assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {200}


async def test_no_read_begins_while_steps_miss_the_shortest_target(sharing):
    fake = await sharing()
    step(fake, num_running=1, step_seconds=0.06)
    refused = await ask(fake)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert (await ask(fake, "HEAD")).status_code == 200
    for better in ({"num_running": 0, "step_seconds": 0.06}, {"num_running": 1, "step_seconds": 0.04}):
        step(fake, **better)
        assert (await ask(fake)).status_code == 200


@pytest.mark.parametrize(("target", "slow"), [(None, True), (0.07, False), (0.01, True)])
def test_steps_are_slow_above_the_flag_or_else_the_shortest_target_of_a_class(target, slow):
    stats = structs.replace(NO_STATS, num_running=1, step_seconds=0.06)
    assert peer_reads.PeerReads(target, SHARING.classes, lambda: stats).slow is slow
    assert not peer_reads.PeerReads(None, (), lambda: stats).slow


async def test_a_read_under_way_pauses_while_steps_miss_the_target_and_ends_if_they_do_so_for_long(
    sharing, monkeypatch
):
    fake = await sharing()
    reads = fake.service.peer_reads

    async def parts():
        for part in (b"one", b"two", b"three"):
            yield part

    sending = reads.send(parts())
    assert await anext(sending) == b"one"
    step(fake, num_running=1, step_seconds=0.06)
    second = asyncio.ensure_future(anext(sending))
    await asyncio.sleep(0.05)
    assert not second.done()
    step(fake, num_running=1, step_seconds=0.04)
    assert await second == b"two"
    step(fake, num_running=1, step_seconds=0.06)
    monkeypatch.setattr(peer_reads, "_LONGEST_PAUSE_SECONDS", 0.01)
    with pytest.raises(TimeoutError):
        await anext(sending)
    assert reads.sent_bytes == len(b"onetwo")


async def test_a_read_that_fails_gives_its_place_to_the_next(sharing, monkeypatch):
    fake = await sharing()
    monkeypatch.setattr(Block, "part", lambda *given: (_ for _ in ()).throw(OSError("the disk is gone")))
    for _ in range(peer_reads.MOST_READS + 1):
        with pytest.raises(OSError, match="the disk is gone"):
            await ask(fake)
    monkeypatch.undo()
    monkeypatch.setenv("INFLIGHT_ADMIN_TOKEN", TOKEN.decode())
    monkeypatch.setenv("INFLIGHT_POD_UID", POD)
    assert (await ask(fake)).status_code == 200


async def test_the_metrics_page_has_what_peers_read(sharing):
    fake = await sharing()
    await ask(fake)
    step(fake, num_running=1, step_seconds=0.06)
    await ask(fake)
    fake.service.session.ready = structs.replace(READY, weights=WeightsRead(100, 20, 3))
    page = (await fake.http.get("/metrics")).text
    found = {line.split(" ")[0]: float(line.split(" ")[1]) for line in page.splitlines() if not line.startswith("#")}
    expected = {
        'inflight_peer_sent_bytes_total{model_name="fake"}': len(CONTENT),
        'inflight_peer_refused_reads_total{model_name="fake"}': 1,
        'inflight_weights_read_bytes_total{from="peers",model_name="fake"}': 100,
        'inflight_weights_read_bytes_total{from="source",model_name="fake"}': 20,
        'inflight_peer_failures_total{model_name="fake"}': 3,
    }
    assert {name: found.get(name) for name in expected} == expected
