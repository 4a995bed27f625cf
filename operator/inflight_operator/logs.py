"""Log lines of the operator, as text or as JSON: one line per record on standard error.

JSON lines have `time` (RFC 3339, UTC), `level`, `logger` and `message`, and in a round of a service its `namespace` and
`name`.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from inflight_base.manifest.keys import ServiceKey

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")

_LIBRARIES = ("kopf", "kubernetes")
"""Only their warnings are logged: kopf logs each event."""

_current_service: ContextVar[ServiceKey | None] = ContextVar("current_service", default=None)


def configure(format_name: str, level: str) -> None:
    """Write log lines of this process to standard error. `format_name` and `level`: of `FORMATS` and `LEVELS`."""
    root, number = logging.getLogger(), logging.getLevelName(level.upper())
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if format_name == "json" else text)
    root.handlers = [handler]
    root.setLevel(max(number, logging.INFO))
    logging.getLogger("inflight_operator").setLevel(number)
    for name in _LIBRARIES:
        logging.getLogger(name).setLevel(max(logging.WARNING, number))
    logging.captureWarnings(format_name == "json")


@contextmanager
def about(key: ServiceKey) -> Iterator[None]:
    """Log records in the block carry this service; so do records of tasks started in it."""
    token = _current_service.set(key)
    try:
        yield
    finally:
        _current_service.reset(token)


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
        }
        service = _current_service.get()
        if service is not None:
            line |= {"namespace": service.namespace, "name": service.name}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
