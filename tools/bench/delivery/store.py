"""A web server that answers requests for ranges of the files of a folder, all together at a limited rate.

python -m tools.bench.delivery.store FOLDER PORT BYTES_PER_SECOND
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_CHUNK = 256 << 10
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


class Link:
    """A link that carries so many bytes a second, of all connections together. 0: as many as it can."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free = 0.0
        self._lock = threading.Lock()

    def carry(self, count: int) -> None:
        """Wait until the link has carried so many bytes."""
        if not self._rate:
            return
        with self._lock:
            self._free = max(self._free, time.monotonic()) + count / self._rate
            until = self._free
        time.sleep(max(0.0, until - time.monotonic()))


def make_server(folder: Path, port: int, rate: float) -> ThreadingHTTPServer:
    """Returns the server, which listens. `rate`: bytes a second, 0 for no limit."""
    link = Link(rate)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *arguments: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            path = folder / Path(self.path).name
            if not path.is_file():
                self.send_error(404)
                return
            size, found = path.stat().st_size, _RANGE.fullmatch(self.headers.get("Range", ""))
            start, end = (int(found[1]), min(int(found[2]) + 1, size)) if found else (0, size)
            self.send_response(206 if found else 200)
            self.send_header("ETag", f'"{size}"')
            self.send_header("Last-Modified", self.date_time_string(path.stat().st_mtime))
            self.send_header("Content-Length", str(end - start))
            if found:
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
            self.end_headers()
            if with_body:
                self.wfile.flush()
                with path.open("rb") as file:
                    self._send(file.fileno(), start, end)

        def _send(self, file: int, start: int, end: int) -> None:
            while start < end:
                count = min(_CHUNK, end - start)
                link.carry(count)
                start += os.sendfile(self.connection.fileno(), file, start, count)

    ThreadingHTTPServer.request_queue_size = 128
    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


if __name__ == "__main__":
    make_server(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])).serve_forever()
