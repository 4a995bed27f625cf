import contextlib
import json
import logging
import subprocess
import sys

import pytest

from inflight_engine import logs


@pytest.fixture(autouse=True)
def keep_logging():
    """The process's own handlers, levels and hooks come back."""
    root, hook = logging.getLogger(), sys.excepthook
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    yield
    root.handlers = handlers
    root.setLevel(level)
    logging.getLogger("inflight_engine").setLevel(logging.NOTSET)
    logging.captureWarnings(False)
    sys.excepthook = hook


def lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_json_line_has_time_level_logger_process_and_message(capsys):
    logs.configure("json", process="engine")
    logging.getLogger("inflight_engine.x").warning("%d blocks", 7)
    (line,) = lines(capsys)
    assert line.pop("time").endswith("Z")
    assert line == {"level": "WARNING", "logger": "inflight_engine.x", "process": "engine", "message": "7 blocks"}


def test_records_in_the_context_of_a_request_carry_its_ids(capsys):
    logs.configure("json")
    token = logs.current_request.set(logs.RequestIds("r-1", "t" * 32, "s" * 16))
    logging.getLogger("inflight_engine").info("within")
    logs.current_request.reset(token)
    logging.getLogger("inflight_engine").info("without")
    logging.getLogger("inflight_engine").info("of another", extra=logs.of_request("r-2"))
    within, without, other = lines(capsys)
    assert (within["request_id"], within["trace_id"], within["span_id"]) == ("r-1", "t" * 32, "s" * 16)
    assert "request_id" not in without
    assert other["request_id"] == "r-2"
    assert "trace_id" not in other


def test_a_traceback_and_a_line_break_stay_in_one_json_line(capsys):
    logs.configure("json")
    with contextlib.suppress(ValueError):
        try:
            raise ValueError("two\nlines")
        except ValueError:
            logging.getLogger("inflight_engine").exception("it\nfailed \ud800")
            raise
    (line,) = lines(capsys)
    assert line["message"] == "it\nfailed \ud800"
    assert "ValueError: two\nlines" in line["exception"]


def test_text_lines_end_with_fields_and_ids(capsys):
    logs.configure("text")
    extra = logs.with_fields({"status": None, "aborted": True, "total_ms": 1.5})
    logs.current_request.set(logs.RequestIds("r-1"))
    logging.getLogger("inflight_engine").info("request", extra=extra)
    logs.current_request.set(None)
    assert capsys.readouterr().err.endswith(" INFO request status=- aborted=true total_ms=1.5 request_id=r-1\n")


def test_records_that_come_before_the_format_is_known_are_written_in_it(capsys):
    logs.hold()
    assert logs.holding()
    logging.getLogger("inflight_engine").info("early")
    assert capsys.readouterr().err == ""
    logs.configure("json")
    assert not logs.holding()
    assert [line["message"] for line in lines(capsys)] == ["early"]


@pytest.mark.parametrize(("level", "written"), [("debug", ["own", "other"]), ("info", ["other"]), ("error", [])])
def test_debug_is_for_the_engines_own_loggers(capsys, level, written):
    logs.configure("json", level)
    logging.getLogger("inflight_engine.x").debug("own")
    logging.getLogger("library").debug("never")
    logging.getLogger("library").info("other")
    assert [line["message"] for line in lines(capsys)] == written


def test_an_uncaught_exception_is_a_json_line():
    code = "from inflight_engine import logs; logs.configure('json'); raise ValueError('why')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    line = json.loads(done.stderr)
    assert done.returncode == 1
    assert (line["level"], line["message"]) == ("CRITICAL", "uncaught exception")
    assert "ValueError: why" in line["exception"]
