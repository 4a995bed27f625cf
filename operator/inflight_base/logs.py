"""Log lines of operator and gateway, as text or as JSON: one line per record on standard error.

JSON lines have `time` (RFC 3339, UTC), `level`, `logger` and `message`, within `about` the `namespace` and `name` of a
service, and the fields of a record's `fields`.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import msgspec

from inflight_base.manifest.keys import ServiceKey

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")

_LIBRARIES = ("aiohttp", "grpc", "kopf", "kubernetes")
"""Libraries of which only warnings are logged: kopf logs each event."""

_current_service: ContextVar[ServiceKey | None] = ContextVar("current_service", default=None)


def configure(program: str, format_name: str, level: str) -> None:
    """Write log lines of this process to standard error.

    Args:
        program: package whose loggers have the level; others have at least `info`.
        format_name: one of `FORMATS`.
        level: one of `LEVELS`.
    """
    root, number = logging.getLogger(), logging.getLevelName(level.upper())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format_name == "json" else TextFormatter())
    root.handlers = [handler]
    root.setLevel(max(number, logging.INFO))
    logging.getLogger(program).setLevel(number)
    for name in _LIBRARIES:
        logging.getLogger(name).setLevel(max(logging.WARNING, number))
    logging.captureWarnings(format_name == "json")
    # No line has them, and they take half the time of a record.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # documented: docs.python.org/3/howto/logging.html#optimization


@contextmanager
def about(key: ServiceKey) -> Iterator[None]:
    """Log records in the block carry this service; so do records of tasks started in it."""
    token = _current_service.set(key)
    try:
        yield
    finally:
        _current_service.reset(token)


class TextFormatter(logging.Formatter):
    """Formats each record as a line, with its fields behind the message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={value}" for name, value in getattr(record, "fields", {}).items())
        return super().format(record) + fields


class JsonFormatter(logging.Formatter):
    """Formats each record as a line with a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        whole = int(record.created)
        service = _current_service.get()
        line: dict[str, Any] = {
            "time": f"{_moment(whole)}.{int((record.created - whole) * 1000):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **({} if service is None else service._asdict()),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        try:
            return msgspec.json.encode(line, enc_hook=str).decode()
        except (ValueError, OverflowError):  # half a surrogate pair, or a number above 64 bits
            return json.dumps(line, default=str)


@lru_cache(maxsize=1)
def _moment(seconds: int) -> str:
    """Returns the Unix time of a log line, but its fraction."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
