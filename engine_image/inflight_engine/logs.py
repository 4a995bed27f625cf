"""Log lines of all processes of an engine, as text or as JSON: one line per record on standard error.

JSON lines have `time` (RFC 3339, UTC), `level`, `logger`, `process`, `message`, the fields of the record, and where the
record belongs to a request `request_id`, `trace_id` and `span_id`.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from contextvars import ContextVar
from logging.handlers import MemoryHandler
from types import TracebackType
from typing import Any, NamedTuple

_QUIET_LIBRARIES = ("uvicorn", "httpx", "asyncio")
"""Libraries of which only warnings are logged."""

_MOST_HELD = 10_000


class RequestIds(NamedTuple):
    """Ids in the log lines of a request. `trace_id` and `span_id`: hexadecimal; empty without tracing."""

    request_id: str
    trace_id: str = ""
    span_id: str = ""


current_request: ContextVar[RequestIds | None] = ContextVar("current_request", default=None)
"""Ids of the request that this context serves."""


def hold() -> None:
    """Keep records until `configure` says how to write them: the format is not known yet."""
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    root.addHandler(MemoryHandler(_MOST_HELD, flushLevel=logging.CRITICAL + 1))


def holding() -> bool:
    """Return whether records are kept back."""
    return any(isinstance(handler, MemoryHandler) for handler in logging.getLogger().handlers)


def configure(format_name: str = "text", level: str = "info", *, process: str = "api") -> None:
    """Write log lines of this process to standard error.

    Args:
        format_name: `text` or `json`.
        level: `debug`, `info`, `warning` or `error`; below `info` it applies to the engine's own loggers only.
        process: `api`, `engine`, or `rank N`; JSON lines name it, text lines only the last of them.
    """
    root, number = logging.getLogger(), logging.getLevelName(level.upper())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(process) if format_name == "json" else TextFormatter(process))
    held, root.handlers = root.handlers, [handler]
    root.setLevel(max(number, logging.INFO))
    logging.getLogger("inflight_engine").setLevel(number)
    for name in _QUIET_LIBRARIES:
        logging.getLogger(name).setLevel(max(logging.WARNING, number))
    if format_name == "json":
        logging.captureWarnings(True)
        sys.excepthook = _log_uncaught
    for each in held:
        if isinstance(each, MemoryHandler):
            each.setTarget(handler)
            each.close()


class TextFormatter(logging.Formatter):
    """`TIME LEVEL MESSAGE key=value ...`"""

    def __init__(self, process: str) -> None:
        shown = f" {process}:" if process.startswith("rank") else ""
        super().__init__(f"%(asctime)s %(levelname)s{shown} %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Format the line without its traceback, which follows fields and ids."""
        pairs = {**_fields(record), **_ids(record)}
        return super().formatMessage(record) + "".join(f" {key}={_text(value)}" for key, value in pairs.items())


class JsonFormatter(logging.Formatter):
    """Formats a record as one line with a JSON object."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": rfc3339(record.created),
            "level": record.levelname,
            "logger": record.name,
            "process": self._process,
            "message": record.getMessage(),
            **_ids(record),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        # Not msgspec: a path or a model's name may hold a lone surrogate, which only escapes can write.
        return json.dumps(line, default=str)


def rfc3339(seconds: float) -> str:
    """Format seconds since the epoch as UTC, to the millisecond."""
    whole = int(seconds)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{int((seconds - whole) * 1000):03d}Z"


def of_request(request_id: str) -> dict[str, Any]:
    """Return the `extra` of a record about this request, outside its context."""
    return {"ids": RequestIds(request_id)} if request_id else {}


def with_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `extra` of a record with these fields."""
    return {"fields": fields}


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = getattr(record, "fields", {})
    return fields


def _ids(record: logging.LogRecord) -> dict[str, str]:
    ids: RequestIds | None = getattr(record, "ids", None) or current_request.get()
    return {} if ids is None else {name: value for name, value in ids._asdict().items() if value}


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _log_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    logging.getLogger("inflight_engine").critical("uncaught exception", exc_info=(kind, error, traceback))
