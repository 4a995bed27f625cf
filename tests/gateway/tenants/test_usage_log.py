"""Usage on a volume: lines, restarts in the middle of them, and volumes that take none."""

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
from itertools import count, islice
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.tenants import usage_log as log_module
from inflight_gateway.tenants.usage import Usage
from inflight_gateway.tenants.usage_files import Line, UsageFiles
from inflight_gateway.tenants.usage_log import UsageLog
from tests.gateway.tenants.things import CHAT, config, finished, gate_of, request
from tests.gateway.waiting import until


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(log_module, "FLUSH_S", 0.02)


class Pod:
    """A gateway's gate with its usage log."""

    def __init__(self, volume):
        self.gate = gate_of()
        self.log = self.gate.usage_log = UsageLog(volume, self.gate.usage, lambda key: "model", wall=lambda: 1234.5678)

    async def __aenter__(self):
        await self.log.start()
        return self

    async def __aexit__(self, *_):
        await self.log.close()

    def ends(self, number, tenant="acme", **fields):
        admitted = self.gate.admit(request(number, tenant), config(), 0.0)
        self.gate.settle(request(number, tenant), admitted, finished(number, **{"tenant": tenant, **fields}))

    def totals(self):
        return {(one.namespace, one.service, one.label): one.counters for one in self.gate.usage.totals()}

    def metric(self, name):
        return {one.name: one.samples[0].value for one in self.log.collect()}[name]


def lines(volume, pod="0"):
    files = sorted((volume / pod).glob("usage-*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


async def test_each_request_that_ended_is_a_line_within_a_second(tmp_path, monkeypatch):
    assert log_module.FLUSH_S <= 1.0
    monkeypatch.setattr(log_module, "FLUSH_S", 0.5)
    async with Pod(tmp_path) as pod:
        usage = {"prompt_tokens": 7, "cached_tokens": 4, "completion_tokens": 30}
        pod.ends(1, status=200, external_id="r-one", key_id="key-1", continuations=2, **usage)
        pod.ends(2, tenant="", status=0)
        pod.gate.unreported(pod.gate.admit(request(3), config(), 0.0), finished(3, status=None, tenant="acme"))
        await until(lambda: len(lines(tmp_path)) == 3)
    known = {"time": 1234.568, "namespace": "team-a", "service": "chat", "model": "model"}
    first, second, third = lines(tmp_path)
    assert first == known | usage | {
        **{"request_id": "r-one", "status": 200, "tenant": "acme", "key_id": "key-1", "continuations": 2},
    }
    assert second == known | {"request_id": "", "status": 0, "prompt_tokens": 10}
    assert third == known | {"request_id": "", "status": None, "tenant": "acme"}


async def test_counters_go_on_after_a_restart_and_refused_requests_are_no_lines(tmp_path):
    async with Pod(tmp_path) as pod:
        for number in range(20):
            pod.ends(number, tenant=f"tenant-{number % 3}", completion_tokens=number)
        pod.gate.count(finished(99, status=401, endpoints=()))
        before = pod.totals()
    assert len(lines(tmp_path)) == 20
    async with Pod(tmp_path) as again:
        assert again.totals() == {key: counters for key, counters in before.items() if any(counters)}
        again.ends(21, tenant="tenant-0", completion_tokens=5)
        assert again.totals()["team-a", "chat", "tenant-0"][3] == before["team-a", "chat", "tenant-0"][3] + 5


async def test_a_deleted_service_does_not_come_back(tmp_path):
    async with Pod(tmp_path) as pod:
        pod.ends(1)
        await until(lambda: lines(tmp_path))
        pod.gate.usage.forget(CHAT)
        pod.ends(2)
    async with Pod(tmp_path) as again:
        assert again.totals()["team-a", "chat", "acme"][0] == 1


def line(tenant, tokens):
    return Line(1.0, "a", "b", "m", "r", 200, tenant, completion_tokens=tokens)


STEPS = st.lists(
    st.tuples(st.sampled_from(["lines", "lines", "restart", "torn"]), st.integers(0, 9), st.binary(max_size=40)),
    max_size=25,
)


@given(STEPS, st.integers(200, 1000))
def test_whenever_it_is_killed_the_counters_are_those_of_the_whole_lines(steps, segment_bytes):
    numbers = count()
    with tempfile.TemporaryDirectory() as folder, patch.object(os, "fdatasync"):
        volume = Path(folder)
        usage, files = Usage(), UsageFiles(volume, segment_bytes, max_segments=2)
        files.open()
        for step, amount, torn in steps:
            if step == "lines":
                data = b""
                for number in islice(numbers, amount):
                    data += msgspec.json.encode(line(f"t{number % 3}", number)) + b"\n"
                    counts = usage.of(ServiceKey("a", "b"), f"t{number % 3}")
                    counts.requests += 1
                    counts.completion_tokens += number
                due = files.begins_segment(len(data))
                files.append(data)
                if due:
                    files.checkpoint(usage.totals())
                continue
            files.close()
            if step == "torn":
                for file in sorted(volume.glob("0/usage-*.jsonl"))[-1:]:
                    with file.open("ab") as opened:
                        opened.write(b'{"time": 1' + torn.replace(b"\n", b""))
            files = UsageFiles(volume, segment_bytes, max_segments=2)
            resumed = Usage()
            for total in log_module._summed(*files.open()):
                resumed.resume(total)
            assert {*resumed.totals()} == {*usage.totals()}
            assert len([*volume.glob("0/usage-*.jsonl")]) <= 2
        files.close()


WRITER = """
import sys
from pathlib import Path
from unittest.mock import patch
from inflight_gateway.tenants.usage_files import Line, UsageFiles

files = UsageFiles(Path(sys.argv[1]))
files.open()
for number in range(10**9):
    line = '{"time":1,"namespace":"a","service":"b","model":"m","request_id":"r","status":200,"prompt_tokens":1}\\n'
    files.append(line.encode() * 500)
    print(500 * (number + 1), flush=True)
"""


def test_a_kill_in_the_middle_of_a_write_loses_only_lines_that_were_being_written(tmp_path):
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
        for _ in range(20):
            written = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        process.wait()
        written = max([written, *map(int, process.stdout.read().split())])
        files = UsageFiles(tmp_path)
        (total,) = log_module._summed(*files.open())
        assert total.requests == total.prompt_tokens
        assert written <= total.requests <= written + 500
        for file in tmp_path.glob("0/usage-*"):
            file.unlink()
        files.close()


async def test_while_the_volume_is_full_requests_go_on_and_their_lines_follow_once(tmp_path, monkeypatch, caplog):
    full, write = [False], os.pwrite

    def pwrite(file, data, offset):
        if not full[0]:
            return write(file, data, offset)
        if len(data) > 10:
            return write(file, data[:10], offset)  # as much as there is room for
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", pwrite)
    async with Pod(tmp_path) as pod:
        pod.ends(1)
        await until(lambda: lines(tmp_path))
        full[0] = True
        for number in range(2, 6):
            pod.ends(number)
            await until(lambda: pod.metric("inflight_gateway_usage_log_failing") == 1)
        full[0] = False
        await until(lambda: pod.metric("inflight_gateway_usage_log_failing") == 0)
        assert pod.metric("inflight_gateway_usage_lines_lost") == 0
    assert len(lines(tmp_path)) == 5
    assert caplog.text.count("usage cannot be written") == 1
    async with Pod(tmp_path) as again:
        assert again.totals() == pod.totals()


async def test_lines_that_wait_for_the_volume_are_bounded_and_lost_ones_counted(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(log_module, "MAX_WAITING_BYTES", 1000)
    volume = tmp_path / "volume"
    volume.write_text("a file, so that no folder can be made")
    async with Pod(volume) as pod:
        for number in range(100):
            pod.ends(number)
        await until(lambda: "usage cannot be written" in caplog.text)
        lost = pod.metric("inflight_gateway_usage_lines_lost")
        assert 90 < lost < 100
        volume.unlink()
        await until(lambda: lines(volume))
        assert len(lines(volume)) == 100 - lost
        assert pod.totals()["team-a", "chat", "acme"][0] == 100
    async with Pod(volume) as again:
        assert again.totals() == pod.totals()


async def test_pods_that_share_a_volume_have_a_folder_each_and_one_goes_on_in_that_of_another(tmp_path):
    async with Pod(tmp_path) as first, Pod(tmp_path) as second:
        first.ends(1)
        second.ends(2)
        second.ends(3)
    assert [len(lines(tmp_path, pod)) for pod in "01"] == [1, 2]
    async with Pod(tmp_path) as third:
        assert third.totals() == first.totals()


async def test_files_that_someone_removed_or_added_are_no_obstacle_and_lines_after_that_count(tmp_path):
    async with Pod(tmp_path) as pod:
        pod.ends(1)
        await until(lambda: len(lines(tmp_path)) == 1)
        (tmp_path / "0" / "usage-000001.jsonl").unlink()
        pod.ends(2)
        await until(lambda: (tmp_path / "0" / "usage-000001.jsonl").exists() and len(lines(tmp_path)) == 1)
    files = UsageFiles(tmp_path)
    files.open()
    files.checkpoint(pod.gate.usage.totals())
    files.close()
    (tmp_path / "0" / "usage-000001.jsonl").rename(tmp_path / "0" / "usage-000001-billed.jsonl")
    async with Pod(tmp_path) as pod:
        pod.ends(3)
    async with Pod(tmp_path) as pod:
        assert pod.totals()["team-a", "chat", "acme"][0] == 3
