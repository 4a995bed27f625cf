import asyncio
import json
import logging

import pytest

from inflight_base import logs
from inflight_base.manifest.keys import ServiceKey
from inflight_operator.cli import main
from inflight_operator.telemetry.metrics import OperatorMetrics
from inflight_operator.workers import Workers, WorkerSettings

CHAT = ServiceKey("team-a", "chat")


@pytest.fixture(autouse=True)
def keep_logging():
    """Restores the process's own handlers and levels."""
    names = ["inflight_operator", "kopf", "kubernetes"]
    root, levels = logging.getLogger(), {name: logging.getLogger(name).level for name in names}
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers = handlers
    root.setLevel(level)
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)
    logging.captureWarnings(False)


def lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


async def test_json_lines_of_a_round_name_the_service_also_those_of_tasks_that_it_starts(capsys):
    logs.configure("inflight_operator", "json", "info")
    with logs.about(CHAT):
        logging.getLogger("inflight_operator.x").warning("%s: within", CHAT)
        await asyncio.create_task(say("task"))
    logging.getLogger("inflight_operator.x").info("without")
    within, task, without = lines(capsys)
    assert (within["namespace"], within["name"], within["level"]) == ("team-a", "chat", "WARNING")
    assert (task["namespace"], task["name"]) == ("team-a", "chat")
    assert set(without) == {"time", "level", "logger", "message"}


async def say(text):
    logging.getLogger("inflight_operator").info(text)


async def test_a_round_that_fails_is_one_json_line_with_the_service_and_the_traceback(capsys):
    logs.configure("inflight_operator", "json", "info")
    ended = asyncio.Event()

    async def fail(key):
        raise ValueError("two\nlines")

    workers = Workers(fail, lambda: {CHAT}, ended.set, OperatorMetrics(), WorkerSettings())
    running = asyncio.create_task(workers.run())
    await asyncio.wait_for(ended.wait(), 60)
    running.cancel()
    await asyncio.wait({running})
    (line,) = lines(capsys)
    assert (line["namespace"], line["name"], line["level"]) == ("team-a", "chat", "ERROR")
    assert "ValueError: two\nlines" in line["exception"]


@pytest.mark.parametrize(("level", "written"), [("debug", ["a", "b"]), ("info", ["b"]), ("error", [])])
def test_levels_are_those_of_the_operator_and_kopf_reports_warnings_only(capsys, level, written):
    logs.configure("inflight_operator", "text", level)
    logging.getLogger("inflight_operator").debug("a")
    logging.getLogger("inflight_operator").info("b")
    logging.getLogger("kopf.objects").info("each event")
    said = capsys.readouterr().err
    assert [line.rsplit(" ", 1)[1] for line in said.splitlines()] == written


def test_an_operator_that_cannot_start_says_so_in_json(capsys, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main(["run", "--engine-image", "x", "--metrics-port", "0", "--log-format", "json"]) == 1
    (line,) = (each for each in lines(capsys) if each["level"] == "CRITICAL")
    assert "give --kubeconfig FILE" in line["message"]


@pytest.mark.parametrize(
    "flags",
    [
        "--log-format yaml",
        "--log-level trace",
        "--engine-traces-endpoint collector:4317",
        "--engine-traces-endpoint http://",
        "--engine-traces-endpoint http://host:abc",
        "--engine-traces-endpoint http://host:0",
        "--engine-traces-endpoint http://host:99999",
        "--engine-traces-sampling-ratio 1.1",
        "--engine-traces-sampling-ratio some",
    ],
)
def test_wrong_values_end_with_2(flags, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["run", "--engine-image", "x", *flags.split()])
    assert ended.value.code == 2
    assert "invalid _" not in capsys.readouterr().err
