"""A stand-in for the network end of an OpenTelemetry collector: it parses what comes with OpenTelemetry's own protobuf
classes and keeps it. The spans in it are real."""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class Collector:
    """`status` is what it answers with; `paths` and `resources` are what was sent."""

    def __init__(self):
        self.status, self.paths, self.resources, self.headers = 200, [], [], []
        self._spans = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                collector._take(self.path, dict(self.headers), body)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(collector.status)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *arguments):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=[0.02], daemon=True).start()

    def _take(self, path, headers, body):
        request = ExportTraceServiceRequest.FromString(body)
        self.paths.append(path)
        self.headers.append({name.lower(): value for name, value in headers.items()})
        if self.status != 200:
            return
        for resource_spans in request.resource_spans:
            self.resources.append(attributes(resource_spans.resource))
            for scope_spans in resource_spans.scope_spans:
                self._spans += scope_spans.spans

    @property
    def servers(self):
        """Server spans, in the order of their begin."""
        return sorted((s for s in self._spans if s.kind == s.SPAN_KIND_SERVER), key=lambda s: s.start_time_unix_nano)

    def children(self, server):
        """Child spans of a server span, in the order of their begin."""
        children = [s for s in self._spans if s.parent_span_id == server.span_id and s is not server]
        return sorted(children, key=lambda s: (s.start_time_unix_nano, s.end_time_unix_nano))

    def server_of(self, request_id, seconds=20.0):
        """Waits for the server span of a request."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for span in self.servers:
                if attributes(span).get("gen_ai.request.id") == request_id:
                    return span
            time.sleep(0.02)
        raise AssertionError(f"no span of {request_id}; there are {self.servers}")

    def close(self):
        self._server.shutdown()
        self._server.server_close()


def attributes(thing):
    """Attributes of a span or a resource as Python's values."""
    return {each.key: _value(each.value) for each in thing.attributes}


def _value(value):
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)
