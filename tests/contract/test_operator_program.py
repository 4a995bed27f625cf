"""The operator's program against a real API server: election, children, restart, end.

There are no nodes here, so no pod ever runs.
"""

import asyncio
import base64
import os
import re
import signal
import subprocess
import sys
import time

import httpx
import pytest

from inflight_operator import leader as leader_module
from inflight_operator.leader import LEASE_NAME, Leadership, LeaseLostError
from tests.contract.cable import to_port
from tests.contract.manifests import service_manifest

pytestmark = pytest.mark.contract

PROGRAM = [sys.executable, "-m", "inflight_operator.cli", "run", "--engine-image", "example.com/engine:1"]


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(leader_module, "LEASE_SECONDS", 4)
    monkeypatch.setattr(leader_module, "RENEW_DEADLINE_SECONDS", 3)
    monkeypatch.setattr(leader_module, "RETRY_SECONDS", 1)


def holder(kubectl, namespace):
    lease = kubectl.json("get", "lease", LEASE_NAME, "-n", namespace)
    return lease["spec"].get("holderIdentity")


class Leading:
    """Takes part in the election; `begun` is set while it acts."""

    def __init__(self, api, namespace, name):
        self.begun = asyncio.Event()
        self.task = asyncio.create_task(Leadership(api, namespace, name).lead(self._act))

    async def _act(self):
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.begun.clear()

    async def end(self):
        self.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.task


async def within(seconds, awaitable):
    async with asyncio.timeout(seconds):
        return await awaitable


async def test_one_leads_and_hands_over_when_it_ends(kubectl, namespace, api, quick):
    first = Leading(api, namespace, "first")
    await within(5, first.begun.wait())
    second = Leading(api, namespace, "second")
    with pytest.raises(TimeoutError):
        await within(6, second.begun.wait())  # longer than the Lease: the first renews it
    assert holder(kubectl, namespace) == "first"
    await first.end()
    await within(3, second.begun.wait())  # sooner than the Lease would run out
    assert holder(kubectl, namespace) == "second"
    await second.end()
    assert holder(kubectl, namespace) is None


async def test_who_loses_the_lease_stops_leading(kubectl, namespace, api, quick):
    leading = Leading(api, namespace, "first")
    await within(5, leading.begun.wait())
    patch = '{"spec": {"holderIdentity": "someone-else", "leaseDurationSeconds": 3600}}'
    kubectl.ok("patch", "lease", LEASE_NAME, "-n", namespace, "--type=merge", "-p", patch)
    with pytest.raises(LeaseLostError):
        await within(8, leading.task)
    assert not leading.begun.is_set()
    assert holder(kubectl, namespace) == "someone-else"  # what is not ours is not released


class Program:
    def __init__(self, kubeconfig, namespace, log, *more):
        self.log = log
        arguments = ["--kubeconfig", str(kubeconfig), "--namespace", namespace, "--metrics-port", "0"]
        arguments += ["--interval", "0.5", *more]
        environment = {**os.environ, "POD_NAMESPACE": namespace, "POD_NAME": f"operator-{time.monotonic_ns()}"}
        with log.open("ab") as sink:
            self.process = subprocess.Popen([*PROGRAM, *arguments], stdout=sink, stderr=sink, env=environment)

    def end(self, number):
        self.process.send_signal(number)
        return self.process.wait(timeout=20)


@pytest.fixture
def start(kubectl, namespace, tmp_path):
    started = []

    def run(*more):
        started.append(Program(kubectl.kubeconfig, namespace, tmp_path / "operator.log", *more))
        return started[-1]

    yield run
    for program in started:
        if program.process.poll() is None:
            program.process.kill()
            program.process.wait()


def eventually(seconds, question):
    """The first answer that is true, within `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        answer = question()
        if answer:
            return answer
        time.sleep(0.5)  # most questions are a kubectl, beside the program that is waited for
    raise AssertionError(f"not within {seconds} s")


def test_children_and_status_come_and_a_restart_rewrites_nothing(kubectl, namespace, start):
    kubectl.create(service_manifest(namespace, {"model": {"source": "builtin://smollm2"}}))

    def condition():
        service = kubectl.json("get", "ifsvc", "chat", "-n", namespace)
        return service.get("status", {}).get("conditions")

    program = start()
    eventually(30, condition)
    kinds = "deployment,service,configmap,secret,networkpolicy,poddisruptionbudget"
    selector = "inflight.dev/service=chat"

    def versions():
        items = kubectl.json("get", kinds, "-n", namespace, "-l", selector)["items"]
        return {(item["kind"], item["metadata"]["name"]): item["metadata"]["resourceVersion"] for item in items}

    before = versions()
    assert len(before) == 6
    events = kubectl.json("get", "events.events.k8s.io", "-n", namespace)["items"]
    assert [event["reason"] for event in events] == ["Starting"]
    annotated = kubectl.json("get", "ifsvc", "chat", "-n", namespace)["metadata"]
    assert "finalizers" not in annotated
    assert not [key for key in annotated.get("annotations", {}) if "kopf" in key]

    program.end(signal.SIGKILL)
    again = start()
    eventually(40, lambda: holder(kubectl, namespace) == name_of(again))  # the dead one's Lease has to run out
    time.sleep(3)
    assert versions() == before

    kubectl.ok("delete", "networkpolicy", "chat", "-n", namespace)
    eventually(10, lambda: ("NetworkPolicy", "chat") in versions())
    begun = time.monotonic()
    assert again.end(signal.SIGTERM) == 0
    assert time.monotonic() - begun < 8
    assert holder(kubectl, namespace) is None


def test_a_program_that_loses_its_lease_ends(kubectl, namespace, start):
    program = start()
    eventually(30, lambda: "looking after" in program.log.read_text())
    patch = '{"spec": {"holderIdentity": "someone-else", "leaseDurationSeconds": 3600}}'
    kubectl.ok("patch", "lease", LEASE_NAME, "-n", namespace, "--type=merge", "-p", patch)
    assert program.process.wait(timeout=20) == 1
    assert "is held by another process: this process ends" in program.log.read_text()
    assert holder(kubectl, namespace) == "someone-else"


def test_it_looks_after_every_namespace_it_is_given_and_no_other(kubectl, namespace, start):
    others = [f"{namespace}-also", f"{namespace}-not"]
    for name in others:
        kubectl.ok("create", "namespace", name)
    for name in (namespace, *others):
        kubectl.create(service_manifest(name, {"model": {"source": "builtin://smollm2"}}))

    def deployed(name):
        return kubectl.json("get", "deployment", "-n", name)["items"]

    start("--namespace", others[0])
    eventually(30, lambda: deployed(namespace) and deployed(others[0]))
    assert deployed(others[1]) == []
    assert kubectl.json("get", "secret", "inflight-operator-key", "-n", namespace)["data"]["epoch"] == "MQ=="
    time.sleep(1)  # a watch in each namespace: a child that is deleted comes back at once
    kubectl.ok("delete", "deployment", "chat", "-n", others[0])
    eventually(10, lambda: deployed(others[0]))


def test_two_installations_serve_the_services_of_their_class_and_write_nothing_at_rest(kubectl, namespace, start):
    model = {"model": {"source": "builtin://smollm2"}}
    for name, named in (("chat", {}), ("other", {"className": "second"}), ("left", {"className": "third"})):
        kubectl.create(service_manifest(namespace, {**model, **named}, name))

    def versions():
        kinds = "ifsvc,deployment,service,configmap,secret,networkpolicy,poddisruptionbudget"
        items = kubectl.json("get", kinds, "-n", namespace)["items"]
        return {(item["kind"], item["metadata"]["name"]): item["metadata"]["resourceVersion"] for item in items}

    start("--no-leader-elect", "--key-secret", "first-key")
    start("--no-leader-elect", "--key-secret", "second-key", "--class-name", "second")
    eventually(30, lambda: {("Deployment", "chat"), ("Deployment", "other")} <= versions().keys())
    time.sleep(3)  # the first round's status and events
    before = versions()
    time.sleep(5)  # ten rounds of each
    assert versions() == before
    assert not [name for kind, name in before if kind != "InferenceService" and name.startswith("left")]
    tokens = {name: kubectl.json("get", "secret", f"{name}-admin-token", "-n", namespace) for name in ("chat", "other")}
    assert tokens["chat"]["data"]["token"] != tokens["other"]["data"]["token"]


def test_the_class_of_a_service_does_not_change(kubectl, namespace):
    model = {"model": {"source": "builtin://smollm2"}}
    kubectl.create(service_manifest(namespace, model))
    refused = kubectl.apply(service_manifest(namespace, {**model, "className": "second"}))
    assert "spec.className is immutable" in refused.stderr
    kubectl.create(service_manifest(namespace, {**model, "className": "inflight"}))
    kubectl.create(service_manifest(namespace, model))


def test_a_gateway_brings_its_key_and_takes_over_the_address_of_services_that_ask_for_it(kubectl, namespace, start):
    gateway = {"gateway": {"enabled": True}, "scaling": {"minReplicas": 0}}
    kubectl.create(service_manifest(namespace, {"model": {"source": "builtin://smollm2"}, **gateway}))
    kubectl.create(service_manifest(namespace, {"model": {"source": "builtin://smollm2"}}, "plain"))
    host = f"inflight-gateway.{namespace}.svc.cluster.local"
    start("--gateway-service", host)

    def conditions():
        service = kubectl.json("get", "ifsvc", "chat", "-n", namespace)
        return {one["type"]: one for one in service.get("status", {}).get("conditions", ())}

    def services():
        items = kubectl.json("get", "services", "-n", namespace, "-l", "inflight.dev/service")["items"]
        return {one["metadata"]["name"]: one["metadata"].get("annotations", {}) for one in items}

    found = eventually(30, conditions)
    assert (found["GatewayReady"]["reason"], found["Ready"]["reason"]) == ("NoGatewayPods", "Starting")
    eventually(10, lambda: services() == {"chat": {"inflight.dev/gateway": host}, "chat-engines": {}, "plain": {}})
    assert base64.b64decode(kubectl.json("get", "secret", "inflight-gateway-key", "-n", namespace)["data"]["key"])
    secret = kubectl.json("get", "secret", "chat-admin-token", "-n", namespace)["data"]
    assert base64.b64decode(secret["tenant-key"]) == b"none"


def test_prefill_engines_come_stay_as_they_are_and_go_as_the_service_says(kubectl, namespace, start):
    spec = {
        "model": {"source": "builtin://smollm2"},
        "gateway": {"enabled": True, "auth": {"apiKeysSecret": "keys"}},
        "engine": {"kvCache": {"swap": "1Gi"}},
    }
    apart = {**spec, "disaggregation": {"mode": "Auto", "prefill": {"maxReplicas": 3}}}
    kubectl.create(service_manifest(namespace, apart))
    start("--gateway-service", f"inflight-gateway.{namespace}.svc.cluster.local")

    def objects():
        kinds = "ifsvc,deployment,service,secret,networkpolicy"
        items = kubectl.json("get", kinds, "-n", namespace, "-l", "inflight.dev/service")["items"]
        return {(item["kind"], item["metadata"]["name"]): item for item in items}

    def data(name):
        return kubectl.json("get", "secret", f"{name}-admin-token", "-n", namespace)["data"]

    eventually(30, lambda: {("Deployment", "chat"), ("Deployment", "chat-prefill")} <= objects().keys())
    time.sleep(3)  # the first rounds' status and events
    before = objects()
    services = {name: one["metadata"]["labels"] for (kind, name), one in before.items() if kind == "Service"}
    assert services.keys() == {"chat", "chat-engines", "chat-prefill-engines"}
    assert services["chat-prefill-engines"]["inflight.dev/prefill-of"] == "chat"
    assert data("chat-prefill") == data("chat")
    time.sleep(3)
    versions = [{key: one["metadata"]["resourceVersion"] for key, one in each.items()} for each in (before, objects())]
    assert versions[0] == versions[1]

    def most():
        return objects()["InferenceService", "chat-prefill"]["spec"]["scaling"]["maxReplicas"]

    edit = '{"spec": {"scaling": {"maxReplicas": 9}}}'
    kubectl.ok("patch", "ifsvc", "chat-prefill", "-n", namespace, "--type=merge", "-p", edit)
    eventually(10, lambda: most() == 3)
    kubectl.create(service_manifest(namespace, {**apart, "disaggregation": {"mode": "Off"}}))
    eventually(10, lambda: ("InferenceService", "chat-prefill") not in objects())


RESTORED = ("secret", "configmap", "service", "ifsvc", "deployment", "networkpolicy", "poddisruptionbudget")
"""Kinds in the order in which Velero restores them: some first, all others by the alphabet of their groups."""

NOT_RESTORED = ("uid", "resourceVersion", "generation", "creationTimestamp", "ownerReferences")
"""Metadata that Velero leaves out, as it does the status."""


@pytest.mark.parametrize("children", [False, True])
def test_a_service_restored_in_veleros_order_has_its_children_again_once_restored_ones_are_gone(
    kubectl, namespace, start, children
):
    kubectl.create(service_manifest(namespace, {"model": {"source": "builtin://smollm2"}}))
    selector = "inflight.dev/service=chat"

    def owners():
        """Owners of the children, by kind; empty before there are all."""
        items = kubectl.json("get", ",".join(RESTORED), "-n", namespace, "-l", selector)["items"]
        found = {(one["kind"], one["metadata"]["name"]): one["metadata"].get("ownerReferences") for one in items}
        return {key: one and one[0]["uid"] for key, one in found.items()} if len(found) == 6 else {}

    def token():
        return kubectl.json("get", "secret", "chat-admin-token", "-n", namespace)["data"]["token"]

    program = start("--no-leader-elect")
    before, old = eventually(30, owners), token()
    program.end(signal.SIGTERM)
    kept = () if children else ("-l", "!inflight.dev/service")
    saved = [one for kind in RESTORED for one in kubectl.json("get", kind, "-n", namespace, *kept)["items"]]
    kubectl.ok("delete", ",".join(RESTORED), "--all", "-n", namespace)
    for one in saved:
        one.pop("status", None)
        one["metadata"] = {name: part for name, part in one["metadata"].items() if name not in NOT_RESTORED}
        if one["kind"] == "Service":
            one["spec"] = {"ports": one["spec"]["ports"], "selector": one["spec"].get("selector")}
        kubectl.create(one)
    start("--no-leader-elect")
    uid = kubectl.json("get", "ifsvc", "chat", "-n", namespace)["metadata"]["uid"]
    if children:

        def said():
            conditions = kubectl.json("get", "ifsvc", "chat", "-n", namespace).get("status", {}).get("conditions", ())
            return [one["message"] for one in conditions if one["type"] == "Progressing"]

        eventually(30, lambda: "does not belong to this InferenceService: delete" in "".join(said()))
        kubectl.ok("delete", ",".join(RESTORED), "-n", namespace, "-l", selector)
    eventually(30, lambda: owners() == dict.fromkeys(before, uid))
    eventually(10, lambda: token() != old)  # it is derived from the key and the new uid


def name_of(program):
    said = re.findall(r"leading as (\S+)", program.log.read_text())
    return said[-1] if len(said) > 1 else "not yet"


def test_a_signal_ends_it_also_while_it_waits_for_the_api_server(namespace, tmp_path, kubectl):
    program = Program(to_port(kubectl.kubeconfig, tmp_path / "config", 1), namespace, tmp_path / "log")
    eventually(20, lambda: "waiting for the API server" in program.log.read_text())
    assert program.end(signal.SIGTERM) == 0


def test_health_and_metrics_are_served_while_it_leads(kubectl, namespace, start, unused_tcp_port):
    """Starts the program with a known port."""
    arguments = ["--kubeconfig", str(kubectl.kubeconfig), "--namespace", namespace, "--no-leader-elect"]
    process = subprocess.Popen([*PROGRAM, *arguments, "--metrics-port", str(unused_tcp_port)])
    address = f"http://127.0.0.1:{unused_tcp_port}"

    def leading():
        try:
            return "inflight_operator_leader 1.0" in httpx.get(f"{address}/metrics").text
        except httpx.HTTPError:
            return False

    try:
        eventually(30, leading)
        assert httpx.get(f"{address}/healthz").status_code == 200
    finally:
        process.terminate()
        assert process.wait(timeout=20) == 0
