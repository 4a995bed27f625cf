"""The process that waits to take over: when there is one, and what happens when it is killed. test_real_restart.py has
real processes."""

import asyncio
import errno
import time
from dataclasses import dataclass, field
from types import SimpleNamespace

import msgspec
import pytest

from inflight_engine.server.engine.phase import Phase
from inflight_engine.server.engine.session import KILL_GRACE_SECONDS, MOST_RESTARTS, WINDOW_SECONDS, Progress
from inflight_engine.server.engine.spare import SETTLE_SECONDS, SPARE_BYTES, Spare
from tests.base.virtual_time import in_virtual_time
from tests.engine.server.fake_engine import READY, connect_engine, until
from tests.engine.server.test_restart import FakeProcess, die, start, supervised


@dataclass
class Process:
    """A stand-in for `EngineProcess`, and those that it started as spares."""

    status: int | None = None
    killed: bool = False
    pid: int = 7
    refuses: bool = False
    has_imported: bool = True
    spares: list = field(default_factory=list)

    def successor(self, *, spare=False):
        assert spare
        if self.refuses:
            raise OSError(errno.ENOMEM, "no memory")
        self.spares.append(Process())
        return self.spares[-1]

    def wait(self, timeout):
        return self.status

    def imported(self, timeout):
        return self.has_imported and self.status is None

    def kill(self):
        self.killed = True


def spare_of(wanted, left=SPARE_BYTES, phase=Phase.READY):
    runner = msgspec.structs.replace(READY.runner, memory_left=left)
    session = SimpleNamespace(phase=phase, ready=msgspec.structs.replace(READY, runner=runner))
    return Spare(wanted, session), session


@pytest.mark.parametrize(
    ("wanted", "left", "seconds"),
    [
        ("on", 0, 0.0),
        ("auto", SPARE_BYTES, SETTLE_SECONDS),
        ("auto", SPARE_BYTES - 1, None),
        ("off", SPARE_BYTES, None),
    ],
)
def test_spare_is_started_where_it_is_wanted_and_there_is_memory(wanted, left, seconds):
    spare, _ = spare_of(wanted, left)
    running, began = Process(), None
    for tenth in range(1200):
        spare.check(100.0 + tenth / 10, running)
        if running.spares and began is None:
            began = tenth / 10
    assert began == seconds
    assert len(running.spares) == (seconds is not None)
    assert spare.pid == (7 if running.spares else None)


def test_spare_is_started_only_while_the_engine_is_ready():
    spare, session = spare_of("on", phase=Phase.LOADING)
    running = Process()
    spare.check(0.0, running)
    assert not running.spares
    session.phase = Phase.READY
    spare.check(1.0, running)
    assert len(running.spares) == 1


def test_spare_is_handed_over_once_and_not_when_it_is_dead():
    spare, _ = spare_of("on")
    running = Process()
    spare.check(0.0, running)
    assert spare.take() is running.spares[0]
    assert (spare.take(), spare.pid) == (None, None)
    spare.check(1.0, running)
    running.spares[1].status = -9
    assert spare.take() is None
    assert running.spares[1].killed
    assert not running.spares[0].killed


def test_spare_that_has_not_imported_its_modules_is_ended():
    spare, _ = spare_of("on")
    running = Process()
    spare.check(0.0, running)
    running.spares[0].has_imported = False
    assert (spare.take(), spare.pid) == (None, None)
    assert running.spares[0].killed


def test_spare_that_dies_again_and_again_is_given_up_for_a_while():
    spare, _ = spare_of("on")
    running = Process()
    for second in range(int(WINDOW_SECONDS)):
        spare.check(float(second), running)
        for each in running.spares:
            each.status = -9
    assert len(running.spares) == MOST_RESTARTS
    spare.check(WINDOW_SECONDS + 1, running)
    assert len(running.spares) == MOST_RESTARTS + 1


@in_virtual_time
async def test_hung_engine_is_noticed_where_no_spare_can_be_started(make_fake, monkeypatch):
    fake = await make_fake(spare_process="on")
    lifecycle, log = await supervised(fake, monkeypatch)
    real = FakeProcess.successor

    def refuse(process, *, spare=False):
        if spare:
            log.append("refused")
            raise BlockingIOError(errno.EAGAIN, "no process")
        return real(process)

    monkeypatch.setattr(FakeProcess, "successor", refuse)
    fake.service.session.ready = READY
    running = asyncio.create_task(lifecycle._supervisor.run())
    call = start(fake)
    await until(lambda: fake.engine.requests and log)
    fake.service.session.progress = Progress(time.monotonic() - 5.1 - KILL_GRACE_SECONDS)
    await until(lambda: "connect" in log)
    assert log == ["refused", "kill", "start", None, "connect"]
    running.cancel()
    call.cancel()


def test_spare_that_cannot_be_started_is_due_again_later():
    spare, _ = spare_of("on")
    running = Process(refuses=True)
    spare.check(0.0, running)
    running.refuses = False
    spare.check(SETTLE_SECONDS - 1, running)
    assert not running.spares
    spare.check(SETTLE_SECONDS, running)
    assert spare.pid == running.spares[0].pid


@in_virtual_time
async def test_spare_loads_the_model_when_the_engine_process_dies(make_fake, monkeypatch):
    fake = await make_fake(spare_process="on")
    lifecycle, log = await supervised(fake, monkeypatch)
    supervisor = lifecycle._supervisor
    monkeypatch.setattr(type(supervisor.process), "wait", lambda process, timeout: None)
    fake.service.session.ready = READY
    supervisor.spare.check(time.monotonic(), supervisor.process)
    waiting = supervisor.spare._process
    await die(fake)
    await supervisor._restart()
    assert log == ["start spare", "kill", None, "connect"]
    assert supervisor.process is waiting


@in_virtual_time
async def test_spare_that_is_lost_while_it_takes_over_is_followed_by_another_process_and_that_one_by_none(make_fake):
    fake = await make_fake()
    session = fake.service.session
    call = start(fake)
    await until(lambda: fake.engine.requests)
    await die(fake)
    session.lost.clear()
    session.taken_over = True
    (await connect_engine(fake.service)).die()
    await until(session.lost.is_set)
    assert session.phase is Phase.RESTARTING
    session.taken_over = False
    (await connect_engine(fake.service)).die()
    await until(lambda: session.phase is Phase.FAILED)
    call.cancel()
