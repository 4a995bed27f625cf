"""An HTTP server with the parts of S3, Google Cloud Storage and Azure that reading needs, and with faults."""

import hashlib
import re
import threading
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

MODIFIED = "Mon, 23 Nov 2026 10:00:00 GMT"


class StoreServer:
    """Files by path, without the bucket: `{"models/tiny/config.json": b"..."}`.

    Attributes:
        access_key: requests without it in their signature are refused.
        authorization: requests with another header of this name are refused.
        statuses: statuses to answer with before a path is served, each once.
        cuts: numbers of bytes after which an answer to a GET of a path is cut, each once.
        etags: False: the server has none.
        ranges: False: the server answers with the whole file, whatever is asked for.
        requests: what was asked for: (method, path).
    """

    bucket = "bucket"

    def __init__(self):
        self.files = {}
        self.access_key = self.authorization = None
        self.statuses = {}
        self.cuts = {}
        self.etags = self.ranges = True
        self.requests = Counter()
        self.num_bytes = 0
        self.lock = threading.Lock()

    def add_folder(self, folder, name):
        for path in folder.iterdir():
            self.files[f"{name}/{path.name}"] = path.read_bytes()

    def etag(self, path):
        return f'"{hashlib.md5(self.files[path]).hexdigest()}"'


@contextmanager
def store_server():
    store = StoreServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            pass

        def do_HEAD(self):
            self.do_GET()

        def do_GET(self):
            url = urlsplit(self.path)
            query = parse_qs(url.query)
            path = unquote(url.path).removeprefix("/account").removeprefix(f"/{store.bucket}").strip("/")
            with store.lock:
                store.requests[self.command, path] += 1
                statuses = store.statuses.get(path)
                status = statuses.pop(0) if statuses else None
            if store.access_key is not None and f"Credential={store.access_key}/" not in (
                self.headers.get("Authorization") or ""
            ):
                return self.answer(403, b"<Error><Code>InvalidAccessKeyId</Code></Error>")
            if store.authorization not in (None, self.headers.get("Authorization")):
                return self.answer(403, b"")
            if status is not None:
                return self.answer(status, b"<Error><Code>SlowDown</Code></Error>")
            if "list-type" in query:
                return self.answer(200, s3_listing(store, query["prefix"][0]))
            if "comp" in query:
                return self.answer(200, azure_listing(store, query["prefix"][0]))
            if path not in store.files:
                return self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return self.file(path)

        def file(self, path):
            content, etag = store.files[path], store.etag(path)
            headers = {"Last-Modified": MODIFIED, **({"ETag": etag} if store.etags else {})}
            if self.headers.get("If-Match") not in (None, etag):
                return self.answer(412, b"")
            found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if found is None or not store.ranges:
                return self.answer(200, content, headers, path)
            start, end = int(found[1]), min(int(found[2]) + 1, len(content))
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
            return self.answer(206, content[start:end], headers, path)

        def answer(self, status, body, headers=None, path=None):
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "HEAD":
                return
            with store.lock:
                cuts = store.cuts.get(path)
                cut = cuts.pop(0) if cuts and len(body) > cuts[0] else None
                store.num_bytes += len(body) if cut is None else cut
            self.wfile.write(body[:cut])
            if cut is not None:
                self.close_connection = True

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        store.url = f"http://127.0.0.1:{server.server_port}"
        yield store
        server.shutdown()


def s3_listing(store, prefix):
    """Returns the answer to `ListObjectsV2`, which is also that of Google's XML API."""
    contents = "".join(
        f"<Contents><Key>{escape(path)}</Key><Size>{len(content)}</Size><ETag>{escape(store.etag(path))}</ETag>"
        "<LastModified>2026-11-23T10:00:00.000Z</LastModified></Contents>"
        for path, content in sorted(store.files.items())
        if path.startswith(prefix)
    )
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>".encode()


def azure_listing(store, prefix):
    blobs = "".join(
        f"<Blob><Name>{escape(path)}</Name><Properties><Last-Modified>{MODIFIED}</Last-Modified><Content-Length>"
        f"{len(content)}</Content-Length><Content-Type>application/octet-stream</Content-Type><Etag>{store.etag(path)[1:-1]}</Etag></Properties></Blob>"
        for path, content in sorted(store.files.items())
        if path.startswith(prefix)
    )
    return f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker/></EnumerationResults>".encode()
