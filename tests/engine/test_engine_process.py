"""What the engine process says last when it cannot go on, and that it leaves when nobody listens any more."""

import socket
import sys

import msgspec
import pytest

from inflight_engine import engine_process
from inflight_engine.channel import FrameDecoder
from inflight_engine.config import EngineConfig
from inflight_engine.messages import EngineFailed, EngineReady
from inflight_engine.scheduling.limits import Limits

READY = EngineReady(Limits(1, 1), 1, 1, 1, 1, 1, "cpu", "float32", "none", 0.0)


class Broken:
    """A stand-in for the engine."""

    has_work = True
    closed = False

    def step(self):
        raise RuntimeError("no step")

    def close(self):
        self.closed = True


def run_main(monkeypatch, load, *, listening=True):
    """Exit status of `main` with another `load`, and what it sent."""
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(engine_process, "load", load)
    monkeypatch.setattr(engine_process.signal, "signal", lambda number, handler: None)
    config = msgspec.json.encode(EngineConfig("some-model")).decode()
    monkeypatch.setattr(sys, "argv", ["engine_process", str(theirs.detach()), config])
    if not listening:
        ours.close()
        return engine_process.main(), []
    with ours:
        status = engine_process.main()
        return status, FrameDecoder.for_api().feed(ours.recv(65536))


def raising(error):
    def load(config):
        raise error

    return load


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("the folder has no weights"), "the folder has no weights"),
        (RuntimeError("cannot allocate 10 bytes"), "loading model some-model failed: cannot allocate 10 bytes"),
    ],
)
def test_failed_load_is_told_as_one(monkeypatch, error, message):
    assert run_main(monkeypatch, raising(error)) == (1, [EngineFailed(message)])


def test_failed_step_is_told_as_one_and_the_recording_is_closed(monkeypatch):
    engine = Broken()
    assert run_main(monkeypatch, lambda config: (engine, READY)) == (1, [READY, EngineFailed("a step failed: no step")])
    assert engine.closed


def test_without_a_listener_it_leaves(monkeypatch):
    assert run_main(monkeypatch, lambda config: (Broken(), READY), listening=False) == (0, [])
