"""The engine process logs why it cannot go on, and ends when its API process is gone."""

import errno
import io
import os
import signal
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import msgspec
import pytest
from tokenizers import Tokenizer, decoders, models

from inflight_engine import engine_process, placement
from inflight_engine.channel import FrameDecoder
from inflight_engine.messages import EngineFailed, EngineReady, Loading
from inflight_engine.models.reading_progress import ReadingProgress
from inflight_engine.runner_info import RunnerInfo
from inflight_engine.server.engine import process as process_module
from inflight_engine.server.engine.process import EngineProcess
from inflight_settings.engine import EngineConfig
from inflight_settings.limits import Limits

CONFIG = EngineConfig("some-model")
READY = EngineReady(Limits(1, 1), RunnerInfo(1, 1, 1, 1, 1, "cpu", "float32", "none", 0.0))


class Broken:
    """A stand-in for the engine."""

    has_work = True
    closed = False

    def step(self):
        raise RuntimeError("no step")

    def close(self):
        self.closed = True


def run_main(monkeypatch, load, *, config=CONFIG, listening=True):
    """Exit status of `main` with another `load`, and what it sent. No `config`: the API process left before."""
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(engine_process, "load", load)
    monkeypatch.setattr(engine_process, "_leave_if_alone", lambda *_: None)  # it would end this process
    config = b"" if config is None else msgspec.json.encode(config)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(config)))
    monkeypatch.setattr(sys, "argv", ["engine_process", str(theirs.detach())])
    monkeypatch.setattr(engine_process, "gc", Mock())  # which is this process's
    if not listening:
        ours.close()
        return engine_process.main(), []
    with ours:
        status = engine_process.main()
        return status, FrameDecoder.for_api().feed(ours.recv(65536))


def raising(error):
    def load(config, announce, wake):
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


def test_loading_says_how_much_is_read_until_it_is_over(monkeypatch):
    progress = ReadingProgress()
    monkeypatch.setattr(engine_process, "READING", progress)
    monkeypatch.setattr(engine_process, "_REPORT_SECONDS", 0.01)

    def load(config, announce, wake):
        progress.begin(100)
        for _ in range(10):
            progress.add(10)
            time.sleep(0.03)
        return Broken(), READY

    _, sent = run_main(monkeypatch, load)
    reports = [message for message in sent if isinstance(message, Loading)]
    assert {message.total_bytes for message in reports} == {100}
    read = [message.read_bytes for message in reports]
    assert read == sorted(read)
    assert len(set(read)) > 3
    assert reports[-1].seconds > reports[0].seconds
    assert sent == [*reports, READY, EngineFailed("a step failed: no step")]


def test_failed_step_is_told_as_one_and_the_recording_is_closed(monkeypatch):
    engine = Broken()
    assert run_main(monkeypatch, lambda *_: (engine, READY)) == (1, [READY, EngineFailed("a step failed: no step")])
    assert engine.closed


def test_without_a_listener_it_leaves(monkeypatch):
    assert run_main(monkeypatch, lambda *_: (Broken(), READY), listening=False) == (0, [])


def test_without_a_configuration_it_leaves(monkeypatch):
    assert run_main(monkeypatch, raising(AssertionError("nothing to load")), config=None) == (0, [])


def test_it_is_bound_to_its_cpus_before_it_loads(monkeypatch):
    done = []
    monkeypatch.setattr(placement, "here", lambda num_threads: placement.place(num_threads, frozenset({2, 3}), 8))
    monkeypatch.setattr(placement, "bind", done.append)

    def load(config, announce, wake):
        done.append("loaded")
        return Broken(), READY

    run_main(monkeypatch, load, config=EngineConfig("some-model", num_threads=1))
    assert done == [{3}, "loaded"]


def test_while_it_loads_no_signal_ends_it_but_the_end_of_the_api_process_does():
    before = children()
    process = EngineProcess()
    try:
        (pid,) = children() - before
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid, number)
        assert process.wait(0.5) is None
        process.socket.close()  # It waits for its configuration, on a pipe that is open.
        assert process.wait(60) == 0
    finally:
        process.kill()


@pytest.mark.parametrize("refused", [errno.ENOSYS, errno.EPERM, errno.EMFILE])
def test_engine_process_starts_where_no_file_in_memory_can_be_made(monkeypatch, refused):
    monkeypatch.setattr(process_module.os, "memfd_create", Mock(side_effect=OSError(refused, "no file")))
    monkeypatch.setattr(process_module.sys, "executable", "/bin/true")
    for process in (first := EngineProcess(), first.successor()):
        assert process.wait(60) == 0
        process.kill()


def test_successor_may_use_the_cpus_of_the_first_one_however_this_process_was_bound_since():
    allowed = os.sched_getaffinity(0)
    first = EngineProcess()
    try:
        os.sched_setaffinity(0, {min(allowed)})
        before = children()
        second = first.successor()
        (pid,) = children() - before
        try:
            assert os.sched_getaffinity(pid) == allowed
            assert os.sched_getaffinity(0) == {min(allowed)}
        finally:
            second.kill()
    finally:
        os.sched_setaffinity(0, allowed)
        first.kill()


def test_kill_ends_what_it_started_too_even_if_all_of_it_is_stopped(monkeypatch):
    """A shell in place of the interpreter, with a child in place of another rank."""
    monkeypatch.setattr(process_module.sys, "executable", "/bin/sh")
    popen = process_module.subprocess.Popen
    script = ["/bin/sh", "-c", "sleep 300 & echo $!; kill -STOP $!; kill -STOP $$"]
    monkeypatch.setattr(
        process_module.subprocess,
        "Popen",
        lambda command, **how: popen(script, stdout=process_module.subprocess.PIPE, **how),
    )
    process = EngineProcess()
    child = int(process._process.stdout.readline())
    process.kill()
    assert process.wait(0) == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def children():
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


def test_ends_of_sequence_outside_of_the_vocabulary_are_left_out_for_grammars(monkeypatch):
    backend = Tokenizer(models.BPE({character: number for number, character in enumerate("abc")}, []))
    backend.decoder = decoders.ByteLevel()
    tokenizer = SimpleNamespace(serialized=backend.to_str, vocab_size=3, eos_token_ids=(-1, 2, 9))
    monkeypatch.setattr("inflight_engine.models.tokens.tokenizer.load_tokenizer", lambda files: tokenizer)
    monkeypatch.setattr("inflight_engine.models.checkpoints.source.resolve", lambda *model: None)
    assert engine_process._vocabulary(EngineConfig("a model"), 4).eos_tokens == [2]
