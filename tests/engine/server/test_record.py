"""GET /admin/record: the file as it is after a flush."""

import gzip

import pytest

from inflight_engine.server.admin import record
from inflight_engine.server.engine.phase import Phase
from inflight_settings.engine import EngineConfig
from tests.engine.server.fake_engine import until

TOKEN = {"authorization": "Bearer secret"}


@pytest.fixture(autouse=True)
def _token(monkeypatch):
    monkeypatch.setenv("INFLIGHT_ADMIN_TOKEN", "secret")


async def test_record_is_flushed_and_sent_as_an_attachment(make_fake, tmp_path, monkeypatch):
    monkeypatch.setattr(record, "_CHUNK_BYTES", 100)
    path = tmp_path / 'my "load".gz'
    path.write_bytes(gzip.compress(bytes(range(256)) * 4))
    fake = await make_fake(engine=EngineConfig("fake", record=str(path)))
    answer = await fake.http.get("/admin/record", headers=TOKEN)
    assert answer.status_code == 200
    assert fake.engine.flushes == 1
    assert answer.headers["content-type"] == "application/gzip"
    assert answer.headers["content-disposition"] == 'attachment; filename="my _load_.gz"'
    assert int(answer.headers["content-length"]) == path.stat().st_size
    assert gzip.decompress(answer.content) == bytes(range(256)) * 4


async def test_what_is_written_while_it_is_sent_is_not_sent(tmp_path):
    path = tmp_path / "r"
    path.write_bytes(b"x" * 10)
    response = record.RecordResponse(path.open("rb"), "r")
    with path.open("ab") as file:
        file.write(b"y" * 10)
    assert b"".join([chunk async for chunk in response.body_iterator]) == b"x" * 10


async def test_without_recording_it_is_404_and_says_how_to_start(make_fake):
    fake = await make_fake()
    answer = await fake.http.get("/admin/record", headers=TOKEN)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (404, "not_recording", "not_found_error")
    assert "--record FILE" in error["message"]


async def test_record_that_cannot_be_read_is_500_with_its_path(make_fake, tmp_path):
    fake = await make_fake(engine=EngineConfig("fake", record=str(tmp_path / "none")))
    answer = await fake.http.get("/admin/record", headers=TOKEN)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "record_unreadable")
    assert str(tmp_path / "none") in answer.json()["error"]["message"]


async def test_record_is_for_admins(make_fake, tmp_path):
    fake = await make_fake(engine=EngineConfig("fake", record=str(tmp_path / "r")))
    assert (await fake.http.get("/admin/record")).status_code == 401
    assert fake.engine.flushes == 0


async def test_while_loading_or_after_the_engine_died_it_is_503(make_fake, tmp_path):
    fake = await make_fake(load=False, engine=EngineConfig("fake", record=str(tmp_path / "r")))
    assert (await fake.http.get("/admin/record", headers=TOKEN)).status_code == 503
    fake = await make_fake(engine=EngineConfig("fake", record=str(tmp_path / "r")))
    fake.engine.die()
    await until(lambda: fake.service.session.phase is Phase.RESTARTING)
    answer = await fake.http.get("/admin/record", headers=TOKEN)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_failed")
