"""Fetched recordings: one service out of many, complete enough for a replay, from pods that answer bytes."""

import gzip
import json

import pytest
import zstandard
from click.testing import CliRunner

from inflight_base.manifest.keys import ServiceKey
from inflight_base.recording import compressor, packed
from inflight_kubectl.access.pods import Pod
from inflight_kubectl.access.resources import Service
from inflight_kubectl.cli import cli
from inflight_kubectl.commands.record import COMMAND as RECORD
from inflight_kubectl.commands.replay import COMMAND as REPLAY
from inflight_kubectl.commands.replay import PROGRAMS
from inflight_kubectl.engines.recordings import kind_of, parts_of
from inflight_kubectl.output import Problem
from inflight_operator.reconcile.decide import decide
from inflight_operator.recording import recorder as recorder_module
from inflight_operator.recording.reader import Recording, differences
from inflight_operator.recording.recorder import DecisionRecorder
from tests.kubectl.objects import body
from tests.operator.reconcile.random_fleet import RandomFleet, Tick

CHAT, OTHER = ServiceKey("default", "chat"), ServiceKey("default", "chat-2")


@pytest.fixture(scope="module")
def rounds():
    fleet = RandomFleet({"slo": {"ttftP95": "2s", "tpotP95": "50ms"}})
    for number in range(40):
        fleet.tick(Tick(rate=40.0 if number > 10 else 1.0))
    return fleet.rounds


@pytest.fixture
def recorded(tmp_path, rounds, monkeypatch):
    """Returns a folder as in the operator's pod: several files, with the rounds of two services mixed."""
    monkeypatch.setattr(recorder_module, "FLUSH_BYTES", 1)
    folder = tmp_path / "recording"
    recorder = DecisionRecorder(folder, max_bytes=160_000)
    for one in rounds:
        for key in (CHAT, OTHER):
            recorder.decided(key, one.snapshot, one.memory, one.plan)
    recorder.close()
    assert len(list(folder.iterdir())) > 1
    return folder


class Cluster:
    """Stands in for a cluster with an operator whose pod has a folder."""

    namespace = "default"
    connection = None

    def __init__(self, arguments, spec=None):
        self.arguments = ["run", "--leader-elect", *arguments]
        self.spec = spec or {}

    def service(self, name):
        return Service.of(body(name, spec=self.spec))

    def pods(self, service):
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        return [Pod.of({"metadata": {"name": "chat-1", "namespace": "default"}, "status": status})]

    def list(self, path, **query):
        metadata = {"namespace": "system", "name": "op", "annotations": {"meta.helm.sh/release-name": "mine"}}
        template = {"spec": {"containers": [{"args": self.arguments}]}}
        return {"items": [{"metadata": metadata, "spec": {"template": template}}]}

    def get(self, path):
        assert path == "/apis/coordination.k8s.io/v1/namespaces/system/leases/inflight-operator"
        return {"spec": {"holderIdentity": "op-1"}}


@pytest.fixture
def record(monkeypatch, tmp_path):
    def run(cluster, folder, *flags):
        def output_of(connection, namespace, pod, container, program, argument):
            if program == "ls":
                names = sorted(one.name for one in folder.iterdir())
                yield "\n".join(names).encode()
                return
            content = (folder / argument.rpartition("/")[2]).read_bytes()
            for start in range(0, len(content), 1000):
                yield content[start : start + 1000]

        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("inflight_kubectl.access.cluster.Target.connect", lambda target: cluster)
        monkeypatch.setattr("inflight_kubectl.access.remote.output_of", output_of)
        return CliRunner().invoke(RECORD, ["chat", *flags])

    return run


ON = ["--record-decisions=/recording"]


def test_the_rounds_of_a_service_are_one_recording_that_can_be_repeated(record, recorded, tmp_path):
    done = record(Cluster(ON), recorded, "--json")
    assert done.exit_code == 0, done.output
    fetched = json.loads(done.stdout)
    assert (fetched["file"], fetched["pod"], fetched["leftOut"]) == ("chat-decisions.zst", "op-1", 0)
    read = list(Recording(tmp_path / fetched["file"]).rounds())
    assert len(read) == fetched["rounds"] > 10
    assert {one.service for one in read} == {"default/chat"}
    for one in read:
        assert [str(each) for each in differences(one.plan, decide(one.snapshot, one.memory))] == []
    assert kind_of(tmp_path / fetched["file"]) == "operator"
    again = record(Cluster(ON), recorded)
    assert (again.exit_code, "exists" in again.output) == (1, True)
    assert record(Cluster(ON), recorded, "--force").exit_code == 0


def test_a_file_that_grows_while_it_is_read_gives_its_whole_rounds(record, recorded, tmp_path):
    last = max(recorded.iterdir())
    last.write_bytes(last.read_bytes()[:-700])
    assert record(Cluster(ON), recorded).exit_code == 0
    assert list(Recording(tmp_path / "chat-decisions.zst").rounds())


def test_files_of_another_version_are_left_out(record, recorded):
    first = min(recorded.iterdir())
    (_, header), *rounds = parts_of([first.read_bytes()])
    old = json.dumps({**json.loads(header), "version": "0.0.1"}).encode() + b"\n"
    first.write_bytes(zstandard.compress(b"".join([old, *(packed(*one) for one in rounds)])))
    done = record(Cluster(ON), recorded)
    assert "left out: 1 older files" in done.stdout


@pytest.mark.parametrize("arguments", [[], [*ON, "--record-service=default/chat-2"]], ids=["off", "of others"])
def test_where_nothing_is_recorded_the_value_that_turns_it_on_is_reported(record, recorded, arguments, tmp_path):
    done = record(Cluster(arguments), recorded)
    assert done.exit_code == 1
    assert "helm upgrade mine helm/inflight -n system --reset-then-reuse-values" in done.output
    others = "default/chat-2," if arguments else ""
    assert f"'recordDecisions.services={{{others}default/chat}}'" in done.output
    assert not (tmp_path / "chat-decisions.zst").exists()


def test_an_empty_recording_leaves_no_file(record, tmp_path):
    (tmp_path / "empty").mkdir()
    done = record(Cluster(ON), tmp_path / "empty")
    assert "has no round of default/chat yet" in done.output
    assert not (tmp_path / "chat-decisions.zst").exists()


@pytest.mark.parametrize("flags", [(), ("--engine",)], ids=["operator", "engine"])
def test_a_file_that_is_overwritten_stays_whole_when_the_connection_breaks_off(record, tmp_path, monkeypatch, flags):
    def broken(*_):
        yield b"x"
        raise Problem("the connection to op-1 broke off")

    kept = tmp_path / "mine.jsonl.gz"
    kept.write_bytes(b"before")
    cluster = Cluster(ON, {"engine": {"extraArgs": ["--record", "/tmp/run.jsonl.gz"]}})
    record(cluster, tmp_path)
    monkeypatch.setattr("inflight_kubectl.access.remote.output_of", broken)
    run = CliRunner().invoke(RECORD, ["chat", "-o", str(kept), "--force", *flags])
    assert (run.exit_code, "broke off" in run.output) == (1, True)
    assert kept.read_bytes() == b"before"
    assert not list(tmp_path.glob("*.part"))


def test_the_recording_of_an_engine_is_fetched_as_it_is(record, tmp_path):
    folder = tmp_path / "engine"
    folder.mkdir()
    (folder / "run.jsonl.gz").write_bytes(gzip.compress(b'["inflight", 1]\n[1, 2]\n'))
    off = record(Cluster([]), folder, "--engine")
    assert "set spec.engine.extraArgs" in off.output
    cluster = Cluster([], {"engine": {"extraArgs": ["--record", "/tmp/run.jsonl.gz"]}})
    assert record(cluster, folder, "--engine").exit_code == 0
    assert kind_of(tmp_path / "chat-engine.jsonl.gz") == "engine"


def test_parts_are_those_of_the_file_wherever_it_is_cut():
    rounds = [("default/chat", b"\n%d\n" % number * 30) for number in range(500)]
    content = zstandard.compress(b"{}\n" + b"".join(packed(*one) for one in rounds))
    for size in (1, 7, 100_000):
        chunks = (content[start : start + size] for start in range(0, len(content), size))
        assert list(parts_of(chunks)) == [("", b"{}\n"), *rounds]
    packer = compressor()
    begun = packer.compress(b"{}\na/b 1\nx") + packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    with pytest.raises(Problem, match="is damaged after round 1"):
        list(parts_of([begun, b"\xff" * 40]))
    with pytest.raises(Problem, match="is no recording"):
        list(parts_of([b"hello\n"]))


def test_the_recording_of_an_operator_of_the_earlier_format_is_one_of_the_operator(tmp_path):
    (tmp_path / "x").write_bytes(gzip.compress(b'{"recording": "inflight-operator decisions", "version": "0.2.0"}\n'))
    assert kind_of(tmp_path / "x") == "operator"


def test_other_files_are_no_recordings(tmp_path):
    for content in (b"", b"hello\n", b"3\n"):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(Problem, match="is no recording"):
            kind_of(tmp_path / "x")
    with pytest.raises(Problem, match="cannot read"):
        kind_of(tmp_path / "missing")


def test_a_recording_is_replayed_by_the_installed_program(record, recorded, tmp_path, capfd):
    assert record(Cluster(ON), recorded).exit_code == 0
    with pytest.raises(SystemExit) as ended:
        cli(["replay", "chat-decisions.zst"])
    out, err = capfd.readouterr()
    assert (ended.value.code, out.splitlines()[-1].endswith("no difference")) == (0, True), err


def test_without_the_program_replay_says_how_to_install_it(tmp_path, monkeypatch):
    (tmp_path / "run.jsonl").write_text('["inflight", 1]\n')
    monkeypatch.setitem(PROGRAMS, "engine", ("no-such-program", "replay", "engine"))
    done = CliRunner().invoke(REPLAY, [str(tmp_path / "run.jsonl")])
    assert done.exit_code == 1
    assert "no-such-program, which is not installed" in done.output
    assert "pip install '.[engine]'" in done.output
