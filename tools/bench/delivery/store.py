"""A web server that answers requests for ranges of the files of a folder, all together at a limited rate.

python -m tools.bench.delivery.store FOLDER [--port N] [--host ADDRESS] [--rate BYTES_PER_SECOND] [--key ID] [--write]

It lists them as S3 does, for any bucket and prefix, and can be served from by `s3://`; it checks no signature.
`/sent` has the bytes of weights that it has sent.
"""

from __future__ import annotations

import argparse
import os
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

SENT_PATH = "/sent"

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


class Count:
    """Bytes of weights that were sent."""

    def __init__(self) -> None:
        self.sent = 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self.sent += count


def make_server(folder: Path, port: int, rate: float, *, host: str = "127.0.0.1", key: str = "") -> ThreadingHTTPServer:
    """Returns the server, which listens.

    Args:
        rate: bytes a second, 0 for no limit.
        key: id of the only access key that is served; empty: all are.
    """
    link, weights = Link(rate), Count()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *arguments: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            asked = urlsplit(self.path)
            if asked.path == SENT_PATH:
                self._say(str(weights.sent).encode())
                return
            if key and f"Credential={key}/" not in self.headers.get("Authorization", ""):
                self.send_error(403)
                return
            if "list-type=2" in asked.query:
                self._list(parse_qs(asked.query).get("prefix", [""])[0])
                return
            path = folder / Path(asked.path).name
            if not path.is_file():
                self.send_error(404)
                return
            size, found = path.stat().st_size, _RANGE.fullmatch(self.headers.get("Range", ""))
            if self.headers.get("If-Match") not in (None, _etag(path)):
                self.send_error(412)
                return
            start, end = (int(found[1]), min(int(found[2]) + 1, size)) if found else (0, size)
            self.send_response(206 if found else 200)
            self.send_header("ETag", _etag(path))
            self.send_header("Last-Modified", self.date_time_string(path.stat().st_mtime))
            self.send_header("Content-Length", str(end - start))
            if found:
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
            self.end_headers()
            if with_body:
                self.wfile.flush()
                with path.open("rb") as file:
                    self._send(file.fileno(), start, end, weights if path.suffix == ".safetensors" else Count())

        def _list(self, prefix: str) -> None:
            contents = "".join(
                f"<Contents><Key>{prefix.rstrip('/')}/{path.name}</Key><Size>{path.stat().st_size}</Size>"
                f"<ETag>{escape(_etag(path))}</ETag><LastModified>2026-11-23T10:00:00.000Z</LastModified></Contents>"
                for path in sorted(folder.iterdir())
            )
            self._say(f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>".encode())

        def _say(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _send(self, file: int, start: int, end: int, counted: Count) -> None:
            while start < end:
                count = min(_CHUNK, end - start)
                link.carry(count)
                sent = os.sendfile(self.connection.fileno(), file, start, count)
                counted.add(sent)
                start += sent

    ThreadingHTTPServer.request_queue_size = 128
    return ThreadingHTTPServer((host, port), Handler)


def _etag(path: Path) -> str:
    stat = path.stat()
    return f'"{stat.st_size}-{stat.st_mtime_ns}"'


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve the files of a folder as a store of models.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=9000)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--rate", type=float, default=0.0, help="bytes a second of all connections; 0: no limit")
    parser.add_argument("--key", default="", help="id of the only access key that is served")
    parser.add_argument("--write", action="store_true", help="write a small checkpoint into the folder first")
    given = parser.parse_args()
    if given.write:
        from tools.bench.delivery.checkpoint import TINY, write_checkpoint  # imports torch

        given.folder.mkdir()
        write_checkpoint(given.folder, TINY)
    server = make_server(given.folder, given.port, given.rate, host=given.host, key=given.key)
    print("listening", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
