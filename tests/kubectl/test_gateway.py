"""Services behind the gateway: discovery of its pods, their answers, and the output of the commands."""

import io

import httpx
import pytest
from click.testing import CliRunner
from rich.console import Console

from inflight_kubectl.access.resources import Queue, Service
from inflight_kubectl.commands.bench import COMMAND as BENCH
from inflight_kubectl.engines.engine_access import PortForward, forward_to_service
from inflight_kubectl.engines.gateway_view import GatewayView, gateway_view, merged, picked_request
from inflight_kubectl.engines.gateways import ready_gateways
from inflight_kubectl.output import Problem
from inflight_kubectl.top.rows import SORTS, arranged, columns, queue, service_cells
from inflight_kubectl.top.summary import as_json
from inflight_kubectl.why.report import explain
from inflight_kubectl.why.text import rendered
from tests.kubectl.fake_api import FakeApi
from tests.kubectl.objects import NOW, body, condition, service

PODS = "/api/v1/namespaces/inflight-system/pods"
SERVICE = "/api/v1/namespaces/default/services/chat"
GATEWAY = {"gateway": {"enabled": True}}
GATEWAY_HOST = "inflight-gateway.inflight-system.svc.cluster.local"
FRONT = {"metadata": {"annotations": {"inflight.dev/gateway": GATEWAY_HOST}}, "spec": {"type": "ClusterIP"}}

PICK = {
    "request_id": "r-1",
    "at": NOW.timestamp() - 4,
    "tenant": "acme",
    "class": "default",
    "prompt_tokens": 812,
    "attempts": [
        {
            "attempt": 1,
            "held_s": 2.5,
            "endpoints": ["10.0.0.1:8000", "10.0.0.2:8000"],
            "pods": ["chat-1", "chat-2"],
            "reason": "prefix",
            "scores": {"pending_tokens": 0.4, "prefix": 1.0},
            "predicted_ttft_s": 0.12,
            "cached_tokens": 768,
        },
        {"attempt": 2, "held_s": 0.0, "pods": ["chat-2"], "reason": "only", "scores": {}},
    ],
    "finished": {"status": 200, "ttft_s": 0.4, "continuations": 1},
}


def gateway_pod(name, ready=True):
    return {
        "metadata": {"name": name, "namespace": "inflight-system"},
        "spec": {
            "initContainers": [{"name": "envoy", "ports": [{"name": "http", "containerPort": 8088}]}],
            "containers": [{"name": "picker", "ports": [{"name": "state", "containerPort": 9003}]}],
        },
        "status": {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}]},
    }


@pytest.fixture
def api():
    server = FakeApi(body(spec=GATEWAY))
    server.objects[SERVICE] = FRONT
    for name, ready in (("gw-1", True), ("gw-0", True), ("gw-2", False)):
        server.objects[f"{PODS}/{name}"] = gateway_pod(name, ready)
    return server


def chat(api):
    return api.target().service("chat")


def text_of(report):
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(rendered(report))
    return console.export_text()


def test_the_ready_pods_of_the_gateway_that_the_service_points_to_are_found(api):
    found = ready_gateways(api.target(), chat(api))
    assert [one.name for one in found] == ["gw-0", "gw-1"]
    assert found[0].http == ("inflight-system", "gw-0", 8088)
    assert found[0].state == ("inflight-system", "gw-0", 9004)


def test_without_an_external_name_all_namespaces_are_looked_through(api):
    del api.objects[SERVICE]
    assert ready_gateways(api.target(), chat(api)) == []
    assert ("GET", "/api/v1/pods") in api.calls


def test_pods_that_may_not_be_listed_say_what_to_ask_for(api):
    api.forbidden.add(PODS)
    with pytest.raises(Problem, match="you may not list the gateway's pods in namespace inflight-system"):
        ready_gateways(api.target(), chat(api))


def test_requests_go_to_a_gateway_pod_with_the_services_name_as_host(api, monkeypatch):
    opened = []

    class Stream:
        def close(self):
            pass

    monkeypatch.setattr(
        "inflight_kubectl.engines.engine_access.open_stream", lambda _, address: opened.append(address) or Stream()
    )
    with forward_to_service(api.target(), chat(api)) as forward:
        seen = []
        transport = httpx.MockTransport(lambda request: seen.append(request) or httpx.Response(200))
        with forward.client(transport=transport, headers={"authorization": "Bearer x"}) as http:
            http.get("/v1/models")
    assert opened[0][:2] == ("inflight-system", "gw-0")
    assert (seen[0].headers["host"], seen[0].headers["authorization"]) == ("chat.default", "Bearer x")


def test_without_a_ready_gateway_pod_the_way_out_is_named(api):
    for name in ("gw-0", "gw-1"):
        del api.objects[f"{PODS}/{name}"]
    with pytest.raises(Problem, match="no gateway pod is ready"):
        forward_to_service(api.target(), chat(api))
    assert "no gateway pod is ready" in gateway_view(api.target(), chat(api)).problem


def test_a_forward_to_engines_keeps_its_own_host():
    forward = PortForward(None, lambda: [])
    with forward, forward.client() as http:
        assert "host" not in http.headers


def test_services_without_the_gateway_have_no_view_of_it(api):
    assert gateway_view(api.target(), service()) is None


class TestAsked:
    """Returns `gateway_view` with the answers of its pods."""

    @pytest.fixture(autouse=True)
    def pods(self, monkeypatch):
        """Answers of the pods, by path; the same from each."""
        self.answers = {
            "/v1/state": {
                "services": [
                    {"namespace": "default", "name": "other", "held": 99},
                    {"namespace": "default", "name": "chat", "held": 2, "oldest_held_s": 3.0, "in_flight": 1},
                ]
            },
            "/v1/picks": {"picks": [PICK], "owner": "gw-1"},
        }

        def client(forward, **_):
            return httpx.Client(transport=httpx.MockTransport(self.answer), base_url="http://gateway")

        monkeypatch.setattr(PortForward, "client", client)

    def answer(self, request):
        answer = self.answers[request.url.path]
        return answer if isinstance(answer, httpx.Response) else httpx.Response(200, json=answer)

    def test_figures_of_all_pods_are_added_up(self, api):
        view = gateway_view(api.target(), chat(api))
        assert (view.pods, view.held, view.in_flight, view.oldest_held_s) == (("gw-0", "gw-1"), 4, 2, 3.0)
        assert len(view.picks) == 2
        assert view.problem is None

    def test_every_pod_is_asked_and_the_owner_of_the_service_is_named(self, api):
        view = gateway_view(api.target(), chat(api))
        assert view.owner == "gw-1"
        assert "at 2 gateway pods; gw-1 decides on them" in text_of(explain(service(), [], [], NOW, view))

    def test_pods_of_an_earlier_release_name_no_owner(self, api):
        self.answers["/v1/picks"] = {"picks": [PICK]}
        view = gateway_view(api.target(), chat(api))
        assert view.owner == ""
        assert "decides on them" not in text_of(explain(service(), [], [], NOW, view))

    @pytest.mark.parametrize(
        "answer",
        [httpx.Response(500), httpx.Response(200, text="<html>"), {"picks": [{}]}, {"picks": 3}, []],
        ids=["error", "no JSON", "no pick", "no list", "no object"],
    )
    def test_answers_that_cannot_be_read_are_a_sentence(self, api, answer):
        self.answers["/v1/picks"] = answer
        assert "gateway pod gw-1 cannot be asked" in gateway_view(api.target(), chat(api)).problem


def test_a_pick_is_shown_with_its_reason_its_figures_and_how_it_ended():
    view = merged({"gw-0": {"held": 3, "held_prompt_tokens": 900, "oldest_held_s": 1.5}}, [picked_request(PICK)])
    shown = text_of(explain(Service.of(body(spec=GATEWAY)), [], [], NOW, view))
    assert "3 requests held (900 prompt tokens, the oldest for 1.5s), 0 in flight, at 1 gateway pod" in shown
    assert "chat-1 -> chat-2 (prefix): 200, TTFT 400ms (predicted 120ms), continued once" in shown
    assert "812 prompt tokens (768 expected in the prefix cache), held 2.5s, tenant acme, class default, r-1" in shown
    assert "scores: pending_tokens 0.4, prefix 1" in shown


@pytest.mark.parametrize(
    ("finished", "said"),
    [
        (None, "in progress (predicted 120ms)"),
        ({"status": 0}, "the client left"),
        ({"status": None}, "ended, status not known"),
    ],
)
def test_picks_that_did_not_end_say_so(finished, said):
    view = merged({"gw-0": {}}, [picked_request(PICK | {"finished": finished})])
    assert said in text_of(explain(service(), [], [], NOW, view))


def test_a_gateway_that_cannot_be_asked_is_said_in_place_of_its_picks():
    shown = text_of(explain(service(), [], [], NOW, GatewayView(problem="you may not list pods")))
    assert "you may not list pods" in shown
    assert "None that the gateway remembers" in shown


def test_engines_that_compute_prompts_are_told_of_and_so_is_that_none_is_ready():
    for status, said in (
        ("True", "✓ PrefillReady: other engines compute its prompts"),
        ("False", "✗ PrefillReady: it computes its prompts itself"),
    ):
        one = Service.of(body(spec=GATEWAY, conditions=[condition("PrefillReady", status, "Because")]))
        assert said in text_of(explain(one, [], [], NOW))


def asleep(reason="Idle", **status):
    conditions = [
        condition("Ready", reason=reason, message="no request came for 10m"),
        condition("Idle", "True" if reason == "Idle" else "False", "Idle"),
        condition("Waking", "False" if reason == "Idle" else "True", "Waking"),
        condition("GatewayReady", reason="Routing"),
    ]
    zero = {"replicas": 0, "readyReplicas": 0, "desiredReplicas": 0, "observed": None, "limits": None, "queue": None}
    return Service.of(body(spec=GATEWAY, conditions=conditions, **zero | status))


def test_a_service_at_zero_is_idle_and_well():
    found = asleep()
    assert found.state == "Idle"
    shown = text_of(explain(found, [], [], NOW))
    assert "default/chat is Idle" in shown
    assert "✓ Ready: takes requests (Idle)" in shown
    assert "· Idle: at zero replicas until a request comes" in shown
    assert "✓ GatewayReady: the gateway routes its requests" in shown


def test_what_ends_and_begins_the_sleep_is_said():
    scaling = {"scaling": {"mode": "Operator", "minReplicas": 0, "maxReplicas": 4, "idleTimeout": "5m"}}
    sleeps = asleep()
    assert (
        "up: the next request starts a replica; the gateway holds it until then"
        in explain(sleeps, [], [], NOW).would_act
    )
    one = Service.of(body(spec=GATEWAY | scaling, replicas=1, readyReplicas=1, desiredReplicas=1))
    assert "down: to zero after 5m without a request (scaling.idleTimeout)" in explain(one, [], [], NOW).would_act


def queued(at_gateway, in_engines=0):
    return {"waiting": at_gateway + in_engines, "atGateway": at_gateway, "inEngines": in_engines}


def test_a_service_that_wakes_shows_what_waits_for_it():
    found = asleep("Waking", desiredReplicas=1, queue=queued(5), gateway={"inFlight": 0})
    assert found.state == "Waking"
    report = explain(found, [], [], NOW)
    assert "5 requests wait (5 at the gateway, 0 in engines)" in report.waits_for
    assert "· Waking: requests wait at the gateway for the first replica" in text_of(report)


def test_top_counts_held_requests_in_the_queue_also_at_zero():
    found = asleep("Waking", queue=queued(5), gateway={"inFlight": 0})
    assert (queue(found).text, queue(found).tone) == ("5", "warn")
    assert queue(asleep()).text == "-"
    assert queue(service(queue=queued(2, 3))).text == "5"
    assert arranged([service("a"), found], "queue", reverse=False, text="")[0] is found
    cells = service_cells(found, columns(79, namespaces=False), NOW, wide=False)
    assert [cell.text for cell in cells][1:4] == ["Waking", "0/0", "5"]
    assert as_json(found)["queue"] == Queue(5, 5, 0)
    assert as_json(found)["inFlightAtGateway"] == 0


def test_a_service_that_wakes_is_before_those_that_are_well():
    found = arranged([service("a"), asleep("Waking")], SORTS[1], reverse=False, text="")
    assert [one.state for one in found] == ["Waking", "Ready"]


def test_a_tenant_cannot_be_claimed_in_a_header_behind_the_gateway(api, monkeypatch):
    monkeypatch.setattr("inflight_kubectl.access.cluster.Target.connect", lambda self: api.target())
    done = CliRunner().invoke(BENCH, ["chat", "--tenant", "acme"])
    assert done.exit_code == 1
    assert "takes the tenant from the API key" in done.stderr
