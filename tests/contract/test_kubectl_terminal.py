"""`kubectl inflight` in a real terminal (tmux) against a real API server, with statuses as the operator writes them.

There are no nodes here: `e2e/scenarios/test_kubectl.py` does the same with engines that run.
"""

import json
import os
import secrets
import subprocess
import sys

import pytest
import yaml

from tests.kubectl.objects import body, decision
from tools.terminal import terminal

pytestmark = pytest.mark.contract

PROGRAM = [
    sys.executable,
    "-c",
    "import sys; sys.argv[0] = 'kubectl-inflight'; import inflight_kubectl.cli as c; c.main()",
]


@pytest.fixture
def serving(kubectl, namespace, make):
    """Creates a service with the status of one that serves; keywords replace fields of it."""

    def serving(name, **status):
        make({"model": {"source": "builtin://smollm2"}, "accelerator": {"count": 0}, "slo": {"ttftP95": "1s"}}, name)
        kubectl.ok(
            "patch", "ifsvc", name, "-n", namespace, "--subresource=status", "--type=merge",
            "-p", json.dumps({"status": body(name, **status)["status"]}),
        )  # fmt: skip

    return serving


@pytest.fixture
def environment(kubectl):
    return {"KUBECONFIG": str(kubectl.kubeconfig), "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm-256color"}


@pytest.fixture
def inflight(environment):
    """Runs the plugin without a terminal."""

    def inflight(*arguments):
        return subprocess.run(
            [*PROGRAM, *arguments], env=os.environ | environment, capture_output=True, text=True, timeout=60
        )

    return inflight


def run(command, environment, **size):
    return terminal(f"inflight-{secrets.token_hex(4)}", [*PROGRAM, *command], environment, **size)


def test_top_is_driven_by_keys_while_services_come_change_and_go(kubectl, namespace, serving, environment):
    serving("chat")
    serving("code", readyReplicas=1, blockedReplicas=1)
    with run(["top", "-n", namespace, "-w", "0.5"], environment) as screen:
        shown = screen.sees("chat", "code", "2 services", "1/2 !1", "420ms", "169/1342")
        assert all(len(line) <= 80 for line in shown.splitlines())

        screen.press("Down", "Enter")
        screen.sees(f"{namespace}/code", "Decisions, the last 1", "replicas 1 -> 2")
        kubectl.ok(
            "patch", "ifsvc", "code", "-n", namespace, "--subresource=status", "--type=merge",
            "-p", json.dumps({"status": {"decisions": [decision(), decision(1, 169, 82, "max_num_seqs")]}}),
        )  # fmt: skip
        screen.sees("max_num_seqs 169 -> 82")
        kubectl.ok("delete", "ifsvc", "code", "-n", namespace)
        screen.sees("code was deleted at")

        screen.press("Escape")
        screen.sees("1 service:")
        serving("zebra")
        screen.sees("zebra", "2 services")
        screen.press("/")
        screen.sees("filter: words in name")
        screen.press("zeb", "Enter")
        screen.sees("1 of 2 match")
        screen.press("Escape")
        screen.sees("2 services:")
        screen.press("s")
        screen.sees("by state")
        screen.press("?")
        screen.sees("Keys", "open a service")
        screen.press("Escape")
        screen.sees("2 services:", "Enter Open")
        screen.press("w")
        screen.sees("CONDITIONS", "takes requests (Serving)")
        screen.press("Escape")
        screen.sees("2 services:", "Enter Open")
        screen.press("q")
        screen.sees("exit code 0")


def test_why_in_a_terminal(namespace, serving, environment):
    serving("chat")
    with run(["why", "chat", "-n", namespace], environment, columns=100, lines=60) as screen:
        screen.sees(f"{namespace}/chat is Ready", "WAITS FOR", "WHAT WOULD MAKE IT ACT", "rate 1.82", "exit code 0")


def test_doctor_in_a_terminal_says_that_no_operator_runs(namespace, environment):
    with run(["doctor", "-n", namespace], environment, columns=120, lines=40) as screen:
        shown = screen.sees("exit code 1")
    assert "ok    crd:" in shown
    assert "fail  operator: the operator is not installed" in shown
    assert "> helm install inflight" in shown


def test_top_once_and_json_show_the_same(namespace, serving, inflight):
    serving("chat")
    table = inflight("top", "--once", "-n", namespace)
    assert table.returncode == 0, table.stderr
    assert table.stdout.split()[:2] == ["NAME", "STATE"]
    assert "420ms/1s" in table.stdout
    (found,) = json.loads(inflight("top", "--json", "-n", namespace).stdout)["services"]
    assert found["state"] == "Ready"
    assert found["observed"]["ttftP95"] == 0.42
    assert found["replicas"] == {"ready": 2, "ordered": 2, "blocked": 0, "pods": 2}


def test_a_name_with_a_slip_is_corrected(namespace, serving, inflight):
    serving("chat")
    done = inflight("why", "caht", "-n", namespace)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f'error: no InferenceService "caht" in namespace "{namespace}". Did you mean chat?\n'


def test_a_caller_without_rights_is_told_what_is_forbidden(kubectl, namespace, inflight, tmp_path):
    config = yaml.safe_load(kubectl.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": kubectl.ok("create", "token", "runner", "-n", namespace).strip()}
    limited = tmp_path / "limited.kubeconfig"
    limited.write_text(yaml.safe_dump(config))
    top = inflight("top", "--once", "-n", namespace, "--kubeconfig", str(limited))
    assert top.returncode == 1
    assert top.stderr.startswith("error: forbidden: inferenceservices.inflight.dev is forbidden")
    doctor = inflight("doctor", "-n", namespace, "--kubeconfig", str(limited))
    assert doctor.returncode == 1
    grant = f"kubectl -n {namespace} create rolebinding inflight-view-runner --clusterrole=view"
    assert f"{grant} --serviceaccount={namespace}:runner" in doctor.stdout


def test_services_and_namespaces_complete(namespace, serving, inflight, environment):
    serving("chat")
    program = "from inflight_kubectl.commands.completion import complete_for_kubectl as c; c()"
    for words, expected in (
        (["why", "-n", namespace, "ch"], "chat"),
        (["why", "-n", namespace[:-1]], namespace),
        (["wh"], "why"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program, *words], env=os.environ | environment, capture_output=True, text=True
        )
        assert done.stdout.splitlines()[0].split("\t")[0] == expected, done.stderr
        assert done.stdout.splitlines()[-1] == ":4"
