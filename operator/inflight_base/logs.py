"""Log lines of the gateway, as text or as JSON: one line per record on standard error.

JSON lines have `time` (RFC 3339, UTC), `level`, `logger` and `message`, and the fields of a record's `fields`.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")

_LIBRARIES = ("aiohttp", "grpc", "kubernetes")
"""Only their warnings are logged."""


def configure(format_name: str, level: str) -> None:
    """Write log lines of this process to standard error. `format_name` and `level`: of `FORMATS` and `LEVELS`."""
    root, number = logging.getLogger(), logging.getLevelName(level.upper())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format_name == "json" else TextFormatter())
    root.handlers = [handler]
    root.setLevel(max(number, logging.INFO))
    logging.getLogger("inflight_gateway").setLevel(number)
    for name in _LIBRARIES:
        logging.getLogger(name).setLevel(max(logging.WARNING, number))
    logging.captureWarnings(format_name == "json")


class TextFormatter(logging.Formatter):
    """A line, with the record's fields behind the message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={value}" for name, value in getattr(record, "fields", {}).items())
        return super().format(record) + fields


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        whole = int(record.created)
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
        line: dict[str, Any] = {
            "time": f"{moment}.{int((record.created - whole) * 1000):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
