"""Connections, against a stand-in for an API server: a small HTTP server with one handler for each test."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml

from inflight_kubectl.access.api_problems import ApiProblem, UnreachableProblem
from inflight_kubectl.access.cluster import Target, candidates
from inflight_kubectl.engines.feed import ServiceFeed
from inflight_kubectl.output import Problem
from tests.kubectl.objects import body

PATH = "/apis/inflight.dev/v1alpha1/namespaces/team-a/inferenceservices"


class Server:
    """Answers GETs with the result of `answer(path, query)`: a status with an object, or a status with lines to
    stream."""

    def __init__(self, answer):
        self.asked = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                path, _, query = self.path.partition("?")
                outer.asked.append((path, query, self.headers.get("Authorization")))
                status, found = answer(path, query)
                lines = found if isinstance(found, list) else [found]
                content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *arguments):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def serve(tmp_path):
    servers = []

    def serve(answer):
        server = Server(answer)
        servers.append(server)
        server.kubeconfig = write_kubeconfig(tmp_path, server.url)
        return server

    yield serve
    for server in servers:
        server.close()


def write_kubeconfig(folder, url):
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team-a"}}],
    }
    file = folder / "kubeconfig"
    file.write_text(yaml.safe_dump(content))
    return str(file)


def status(code, message, reason="", name=None):
    return {
        "kind": "Status",
        "code": code,
        "message": message,
        "reason": reason,
        "details": {"name": name} if name else {},
    }


def test_services_are_read_with_the_contexts_namespace_and_token(serve):
    server = serve(lambda path, query: (200, {"items": [body("b", "team-a"), body("a", "team-a")]}))
    cluster = Target(server.kubeconfig).connect()
    assert (cluster.context, cluster.namespace, cluster.scope) == ("here", "team-a", "team-a")
    assert [one.name for one in cluster.services()] == ["a", "b"]
    assert server.asked == [(PATH, "", "Bearer secret")]


@pytest.mark.parametrize(
    ("code", "answer", "says"),
    [
        (401, status(401, "Unauthorized"), "the API server refuses the credentials of context here. Log in again"),
        (403, status(403, "services is forbidden."), "forbidden: services is forbidden. Ask an administrator"),
        (
            404,
            status(404, "the server could not find"),
            "no InferenceService resource (inflight.dev/v1alpha1).",
        ),
        (500, status(500, "etcd is  away"), "the API server answers 500: etcd is away"),
    ],
)
def test_every_refusal_says_what_is_wrong_and_what_to_do(serve, code, answer, says):
    server = serve(lambda path, query: (code, answer))
    with pytest.raises(ApiProblem) as caught:
        Target(server.kubeconfig).connect().services()
    assert says in caught.value.message
    assert caught.value.status == code


def test_a_service_that_does_not_exist_has_names_that_are_close(serve):
    def answer(path, query):
        if path == PATH:
            return 200, {"items": [body("chat", "team-a"), body("code", "team-a")]}
        return 404, status(404, "not found", "NotFound", name="caht")

    server = serve(answer)
    with pytest.raises(Problem, match=r'no InferenceService "caht" in namespace "team-a"\. Did you mean chat'):
        Target(server.kubeconfig).connect().service("caht")


def test_an_api_server_that_is_away_is_reported_at_once(serve, tmp_path):
    server = serve(lambda path, query: (200, {}))
    server.close()
    with pytest.raises(UnreachableProblem, match=r"does not answer: connection refused.*context here"):
        Target(server.kubeconfig).connect().services()


@pytest.mark.parametrize(
    ("content", "context", "says"),
    [
        (None, None, "no kubeconfig: .* does not exist. Give --kubeconfig"),
        ("a: [", None, "cannot read kubeconfig"),
        ("{contexts: [{name: a, context: {}}]}", None, "has no current context"),
        ("{contexts: [{name: a, context: {}}]}", "b", 'no context "b" in the kubeconfig. There are a'),
        ("{contexts: [{name: a, context: {cluster: x}}]}", "a", 'cannot use context "a"'),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_says_why(tmp_path, content, context, says):
    file = tmp_path / "config"
    if content is not None:
        file.write_text(content)
    with pytest.raises(Problem, match=says):
        Target(str(file), context).connect()


def test_completion_gives_names_and_nothing_where_they_cannot_be_had(serve, tmp_path):
    server = serve(lambda path, query: (200, {"items": [body("chat", "team-a"), body("code", "team-a")]}))
    target = Target(server.kubeconfig)
    assert candidates("services", target, "ch") == ["chat"]
    assert candidates("contexts", target, "") == ["here"]
    assert candidates("services", Target(str(tmp_path / "none")), "") == []


def test_the_feed_follows_changes_and_comes_back_after_the_api_server_was_away(serve):
    """A list, a watch with an addition and a deletion, a failure, and the list again."""
    lists = []

    def answer(path, query):
        if "watch=1" in query:
            if len(lists) > 1:
                return 500, status(500, "no watch")
            return 200, [
                {"type": "ADDED", "object": body("code", "team-a")},
                {"type": "DELETED", "object": body("chat", "team-a")},
                {"type": "ERROR", "object": {"code": 500, "message": "etcd leader changed"}},
            ]
        lists.append(query)
        return 200, {"items": [body("chat", "team-a")], "metadata": {"resourceVersion": "5"}}

    views, enough = [], threading.Event()

    def changed(view):
        views.append((tuple(one.name for one in view.services), view.problem))
        if len(lists) > 1:
            enough.set()

    server = serve(answer)
    feed = ServiceFeed(Target(server.kubeconfig).connect(), changed)
    feed.start()
    assert enough.wait(60)
    feed.stop()
    ended = "the API server ended the watch: etcd leader changed"
    assert views[:5] == [
        (("chat",), None),
        (("chat", "code"), None),
        (("code",), None),
        (("code",), ended),
        (("chat",), None),
    ]


def test_an_address_that_is_no_kubernetes_api_is_reported(serve):
    server = serve(lambda path, query: (200, "a page of a proxy"))
    with pytest.raises(UnreachableProblem, match="not as a Kubernetes API server"):
        Target(server.kubeconfig).connect().services()


def test_the_feed_reports_an_answer_that_it_cannot_read_and_goes_on(serve):
    server = serve(lambda path, query: (200, {"items": [{"metadata": {}}]}))
    views, told = [], threading.Event()
    feed = ServiceFeed(Target(server.kubeconfig).connect(), lambda view: (views.append(view), told.set()))
    feed.start()
    assert told.wait(60)
    feed.stop()
    assert "KeyError" in views[0].problem


def test_watches_that_end_at_once_are_not_begun_in_a_hot_loop(serve):
    def answer(path, query):
        return 200, [] if query else {"metadata": {"resourceVersion": "1"}, "items": []}

    server = serve(answer)
    feed = ServiceFeed(Target(server.kubeconfig).connect(), lambda view: None)
    feed.start()
    time.sleep(0.5)
    feed.stop()
    assert len(server.asked) <= 2
