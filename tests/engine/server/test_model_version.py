"""A server serves the version of the model that the first pod of its rollout has, or ends with a sentence."""

import asyncio
import json

import pytest
from msgspec import structs

from inflight_engine.server import lifecycle
from inflight_engine.server.engine.phase import Phase
from inflight_engine.server.http.middleware import OpenResponses
from tests.base.virtual_time import in_virtual_time
from tests.engine.server.fake_engine import READY, ByteTokenizer, until

pytestmark = pytest.mark.usefixtures("virtual_clock")

FIRST, SECOND = "sha256:" + "1" * 64, "sha256:" + "2" * 64


class FakeProcess:
    started = 0.0

    def kill(self):
        pass

    def wait(self, timeout):
        return 0


@pytest.fixture
def told(monkeypatch, tmp_path):
    """Writes the file that the operator gives to the pods of the rollout `chat-abc`."""
    path = tmp_path / "digests.json"
    monkeypatch.setattr("socket.gethostname", lambda: "chat-abc-x7k2p")
    return lambda digest: path.write_text(json.dumps({"chat-abc": digest}))


@pytest.fixture
def start(make_fake, monkeypatch, tmp_path):
    """Starts a server whose processes find these versions of the model."""

    async def begin(digest, of_engine=None):
        async def loaded(config):
            return ByteTokenizer(), digest

        monkeypatch.setattr(lifecycle, "_in_daemon_thread", loaded)
        fake = await make_fake(load=False, limits_file=tmp_path / "limits.json")
        running = asyncio.create_task(lifecycle.Lifecycle(fake.service, FakeProcess(), OpenResponses()).run())
        fake.engine.send(ready(of_engine or digest))
        return fake, running

    return begin


def ready(digest):
    return structs.replace(READY, runner=structs.replace(READY.runner, digest=digest))


async def stopped(running):
    running.cancel()
    await asyncio.wait([running])


@in_virtual_time
async def test_a_server_that_finds_the_same_version_is_ready_and_reports_it(start, told):
    told(FIRST)
    fake, running = await start(FIRST)
    await until(lambda: fake.service.session.phase is Phase.READY)
    assert f'inflight_model_info{{digest="{FIRST}",model_name="fake"}} 1.0' in (await fake.http.get("/metrics")).text
    await stopped(running)


@in_virtual_time
async def test_a_server_that_finds_another_version_is_never_ready(start, told):
    told(FIRST)
    fake, running = await start(SECOND)
    assert (await running).startswith(f"model source fake has changed: it is {SECOND} now, and the first pod of this")
    assert (await fake.http.get("/ready")).status_code == 503


@in_virtual_time
async def test_of_two_that_start_together_the_second_drains(start, told):
    fake, running = await start(SECOND)
    await until(lambda: fake.service.session.phase is Phase.READY)
    told(FIRST)
    assert "kubectl rollout restart" in await running
    assert fake.service.draining


@in_virtual_time
async def test_the_first_pod_serves_on_when_it_is_the_one_that_decided(start, told):
    fake, running = await start(FIRST)
    await until(lambda: fake.service.session.phase is Phase.READY)
    told(FIRST)
    await asyncio.sleep(3 * lifecycle.AGREE_SECONDS)
    told(SECOND)  # of nothing that this pod has to do with: it agreed
    await asyncio.sleep(3 * lifecycle.AGREE_SECONDS)
    assert not fake.service.draining
    await stopped(running)


@in_virtual_time
async def test_a_model_that_changes_between_two_processes_is_not_served(start):
    _, running = await start(FIRST, of_engine=SECOND)
    assert await running == "model source fake changed while it was loaded: start the server again"


@in_virtual_time
async def test_a_new_engine_process_with_another_version_ends_the_server(start):
    fake, running = await start(FIRST)
    await until(lambda: fake.service.session.phase is Phase.READY)
    fake.service.session._loaded(ready(SECOND))
    assert await running == "the model's files have changed since this server first read them: start it again"
