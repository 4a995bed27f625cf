import subprocess
import sys

import pytest
from click.testing import CliRunner

from inflight_kubectl.cli import COMMANDS, cli
from inflight_kubectl.output import age, latency, span
from tests.kubectl.objects import NOW


@pytest.mark.parametrize(
    "words",
    [["--help"], ["top", "--help"], ["why", "-h"], ["doctor", "-h"], ["completion", "-h"], ["keys", "create", "-h"]],
)
def test_help_imports_neither_the_kubernetes_client_nor_textual(words):
    code = (
        "import sys\nfrom inflight_kubectl.cli import cli\n"
        f"cli({words!r}, standalone_mode=False)\n"
        "print([name for name in ('kubernetes', 'textual', 'httpx', 'rich') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples(name):
    done = CliRunner().invoke(cli, [name, "--help"])
    assert done.exit_code == 0, done.output
    assert "Examples:" in done.output


@pytest.mark.parametrize("words", [["why"], ["nothing"], ["top", "--interval", "0"], ["completion", "tcsh"]])
def test_wrong_usage_ends_with_2(words):
    assert CliRunner().invoke(cli, words).exit_code == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_covers_both_programs(shell):
    done = CliRunner().invoke(cli, ["completion", shell])
    assert done.exit_code == 0, done.output
    assert "_INFLIGHT_COMPLETE" in done.output
    assert "kubectl-inflight" in done.output


def test_top_without_a_terminal_says_what_to_use(monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    done = CliRunner().invoke(cli, ["top"])
    assert done.exit_code == 1
    assert done.stderr.startswith("error: no kubeconfig: ")


def test_lengths_of_time_are_kubectls():
    assert [span(s) for s in (-3, 5, 119, 120, 7199, 7200, 172_800)] == ["0s", "5s", "119s", "2m", "119m", "2h", "2d"]
    assert age(None) == "-"
    assert age(NOW, NOW) == "0s"


def test_latencies_are_the_operators():
    assert [latency(s) for s in (None, 0.071, 0.9999, 1.25, 12.0)] == ["-", "71ms", "1s", "1.2s", "12s"]
