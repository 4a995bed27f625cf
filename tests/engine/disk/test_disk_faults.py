"""An engine with a small model whose disk fails while it runs: greedy output equals that of an engine without a disk,
nothing stays held, and once the disk is whole again its blocks are loaded again."""

import errno
import os
import random
import shutil
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.engine.disk.test_real_disk import SIZES, Engine, eventually
from tests.engine.execution.tiny_model import COMMON, VOCAB, make_model

KIND, HEAD_DIM = "llama-wide-heads", 16
TOKEN_BYTES = 4 * 2 * COMMON["num_hidden_layers"] * COMMON["num_key_value_heads"] * HEAD_DIM
PROMPTS = [random.Random(seed).choices(range(VOCAB), k=60) for seed in range(14)]
"""Each of 15 blocks; the device has 40, and host memory 48."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make_model(folder, KIND)
    return str(folder)


@pytest.fixture(scope="module")
def alone(model):
    engine = Engine(model=model, device="cpu", prefix_caching=False)
    return [engine.answer([prompt])[0] for prompt in PROMPTS]


@pytest.fixture
def engine(model, tmp_path, monkeypatch):
    monkeypatch.setattr("inflight_engine.disk.work._PAUSE_SECONDS", 0.0)
    engine = Engine(tmp_path / "kv", model=model, device="cpu", block_bytes=SIZES["block_size"] * TOKEN_BYTES)
    yield engine
    engine.close()


def file_of(engine):
    return Path(f"/proc/self/fd/{engine.disk.reader._store._file}")


@contextmanager
def cut(engine):
    """In the middle of a block."""
    os.truncate(file_of(engine), file_of(engine).stat().st_size // 3 + 1000)
    yield
    assert engine.disk.reader.num_failed > 0


@contextmanager
def damaged(engine):
    """Names and blocks, in every third page."""
    rng = random.Random(1)
    with file_of(engine).open("r+b") as file:
        for start in range(0, file_of(engine).stat().st_size, 3 * 4096):
            file.seek(start + rng.randrange(80))
            file.write(rng.randbytes(9))
    yield
    assert engine.disk.reader.num_failed > 0


@contextmanager
def full(engine):
    with refusing(("posix_fallocate", "pwritev"), errno.ENOSPC):
        yield
    assert engine.disk.reader.num_dropped > 0


@contextmanager
def unreachable(engine):
    with refusing(("posix_fallocate", "pwritev", "preadv"), errno.EIO):
        yield
    assert engine.disk.reader.num_failed > 0


@contextmanager
def removed(engine):
    """Its file has no name any more."""
    folder = file_of(engine).readlink().parent
    shutil.rmtree(folder)
    yield
    assert not folder.exists()


@contextmanager
def reads_that_hang(engine):
    with hanging("preadv"):
        yield
        assert engine.disk._reads, "what hangs is still to come"
    assert engine.disk.num_late > 0


@contextmanager
def writes_that_hang(engine):
    with hanging("pwritev"):
        yield
        assert engine.disk.reader._writes, "what hangs is still to be written"


@contextmanager
def refusing(calls, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    with pytest.MonkeyPatch.context() as patch:
        for call in calls:
            patch.setattr(f"inflight_engine.disk.store.os.{call}", refuse)
        yield


@contextmanager
def hanging(call):
    over, system_call = threading.Event(), getattr(os, call)

    def hang(*arguments):
        assert over.wait(60)
        return system_call(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"inflight_engine.disk.store.os.{call}", hang)
        try:
            yield
        finally:
            over.set()


@pytest.mark.parametrize("fault", [cut, damaged, full, unreachable, removed, reads_that_hang, writes_that_hang])
def test_a_disk_that_fails_while_the_engine_runs_changes_no_token_and_leaves_nothing(fault, engine, alone):
    def answer(prompts, *, settled):
        for first in range(0, len(prompts), 2):
            assert engine.answer(prompts[first : first + 2]) == alone[first : min(first + 2, len(prompts))]
            if settled:
                engine.settle()

    answer(PROMPTS[:7], settled=True)
    with fault(engine):
        for _ in range(2):
            answer(PROMPTS, settled=False)
    engine.check_nothing_is_held()
    eventually(lambda: not engine.disk.busy)
    answer(PROMPTS[:7], settled=True)
    loaded = engine.disk.reader.num_loaded
    answer(PROMPTS[:7], settled=True)
    assert engine.disk.reader.num_loaded > loaded
    engine.check_nothing_is_held()
