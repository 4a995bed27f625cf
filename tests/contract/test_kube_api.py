"""KubeApi against a real API server: status, events, deletion cost, and errors a person can read."""

import asyncio
import re
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from kubernetes.aio import client

from inflight_base.kube import client as kube
from inflight_base.kube.client import KubeApi
from inflight_base.kube.connect import load_configuration
from inflight_base.kube.errors import KubeApiError
from inflight_base.kube.kinds import Selection
from inflight_base.manifest.names import DELETION_COST
from inflight_operator.api.status import (
    Condition,
    Decision,
    InferenceServiceStatus,
    LimitsStatus,
    ObservedStatus,
    QueueStatus,
)
from inflight_operator.api.types import InferenceService
from inflight_operator.keys import LiveAdminKey
from inflight_operator.telemetry.access import Verdict, review
from tests.contract.cable import to_port

pytestmark = pytest.mark.contract

NOW = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
STATUS = InferenceServiceStatus(
    observed_generation=1,
    conditions=[
        Condition(
            type="Ready", status="True", reason="Serving", message="2 of 2 pods take requests.",
            observed_generation=1, last_transition_time=NOW,
        )
    ],
    url="http://chat.test.svc",
    replicas=2,
    ready_replicas=2,
    desired_replicas=2,
    selector="app.kubernetes.io/name=inflight-engine,inflight.dev/service=chat",
    limits=LimitsStatus(max_num_seqs=48, max_num_batched_tokens=1024, revision=7, pods_in_force=2),
    queue=QueueStatus(waiting=12, at_gateway=8, in_engines=4),
    observed=ObservedStatus(
        running=40, kv_utilization=0.43, ttft_p95="420ms", preemptions_per_minute=0.0, at=NOW
    ),
    decisions=[
        Decision(time=NOW, kind="Scaling", change="replicas 1 -> 2", reason="12 waiting, target 4 each", applied=True)
    ],
)  # fmt: skip


@pytest.fixture
def service(make):
    return InferenceService.from_dict(make({"model": {"source": "builtin://smollm2"}, "accelerator": {"count": 0}}))


async def read(api, service):
    return InferenceService.from_dict(
        await api.get("InferenceService", service.metadata.namespace, service.metadata.name)
    )


async def test_a_status_is_stored_as_it_was_written_and_written_once(api, service):
    written = await api.patch_status(service, STATUS.to_dict())
    stored = await read(api, service)
    assert InferenceService.from_dict(written) == stored
    assert stored.status.to_dict() == STATUS.to_dict()
    assert stored.metadata.generation == service.metadata.generation
    assert await api.patch_status(stored, STATUS.to_dict()) is None


async def test_a_field_that_is_gone_from_the_status_is_removed(api, service):
    await api.patch_status(service, STATUS.to_dict())
    less = STATUS.model_copy(update={"observed": None, "decisions": []})
    await api.patch_status(await read(api, service), less.to_dict())
    stored = await read(api, service)
    assert stored.status.observed is None
    assert stored.status.decisions == []
    assert stored.status.limits == STATUS.limits


async def test_a_status_does_not_land_on_another_service_of_the_same_name(kubectl, api, service):
    namespace = service.metadata.namespace
    made = await api.get("InferenceService", namespace, "chat")
    kubectl.ok("delete", "ifsvc", "chat", "-n", namespace)
    kubectl.create({**made, "metadata": {"name": "chat", "namespace": namespace}})
    with pytest.raises(KubeApiError) as refused:
        await api.patch_status(service, STATUS.to_dict())
    assert refused.value.status == 422
    assert (await read(api, service)).status.url is None


async def test_kubectl_shows_the_columns_and_waits_for_the_condition(kubectl, api, service):
    await api.patch_status(service, STATUS.to_dict())
    namespace = service.metadata.namespace
    columns = kubectl.ok("get", "ifsvc", "-n", namespace, "--no-headers").split()
    assert columns[:7] == ["chat", "True", "2", "12", "0.43", "48/1024", "Serving"]
    kubectl.ok("wait", "--for=condition=Ready", "--timeout=5s", "ifsvc/chat", "-n", namespace)


async def test_a_status_cannot_change_the_spec(kubectl, api, service):
    patch = '{"spec": {"slo": {"ttftP95": "1s"}}, "status": {"url": "http://x"}}'
    kubectl.ok("patch", "ifsvc", "chat", "-n", service.metadata.namespace, "--subresource=status", "--type=merge",
               "-p", patch)  # fmt: skip
    stored = await read(api, service)
    assert stored.spec == service.spec
    assert stored.status.url == "http://x"


async def test_an_event_shows_on_the_service(kubectl, api, service):
    await api.event(service, "Warning", "ImagePullFailed", "é" * 2000)
    await api.event(service, "Normal", "Scaled", "replicas 1 -> 2: 12 requests wait, target 4 a replica")
    described = kubectl.ok("describe", "ifsvc", "chat", "-n", service.metadata.namespace)
    assert re.search(r"Normal\s+Scaled\s.*replicas 1 -> 2: 12 requests wait, target 4 a replica", described)
    assert re.search(r"Warning\s+ImagePullFailed\s", described)


async def test_an_annotation_is_set_and_a_pod_that_is_gone_is_no_error(kubectl, api, namespace):
    security = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    kubectl.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "pod", "namespace": namespace},
            "spec": {"containers": [{"name": "c", "image": "i", "securityContext": security}]},
        }
    )
    await api.annotate_pod(namespace, "pod", DELETION_COST, "-5")
    await api.annotate_pod(namespace, "gone", DELETION_COST, "1")
    pod = await api.get("Pod", namespace, "pod")
    assert pod["metadata"]["annotations"][DELETION_COST] == "-5"


async def test_what_is_not_there_is_none_and_deleting_it_is_no_error(api, namespace):
    assert await api.get("Service", namespace, "gone") is None
    await api.delete("Service", namespace, "gone")


async def test_a_refusal_carries_what_the_api_server_said(api, namespace):
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x", "namespace": namespace}, "spec": {}}
    with pytest.raises(KubeApiError, match=r"spec\.ports: Required value") as refused:
        await api.apply(service)
    assert refused.value.status == 422


async def test_an_api_server_that_is_away_is_an_error_with_a_sentence(kubectl, tmp_path):
    away = to_port(kubectl.kubeconfig, tmp_path / "kubeconfig", 1)
    async with client.ApiClient(await load_configuration(str(away))) as unconnected:
        with pytest.raises(KubeApiError, match="the API server does not answer") as error:
            await KubeApi(unconnected).get("Service", "default", "x")
    assert error.value.status == 0


@asynccontextmanager
async def fake_api_server(answer):
    """A KubeApi whose server does `answer` with each connection."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with client.ApiClient(client.Configuration(host=url)) as connected:
        try:
            yield KubeApi(connected, timeout_seconds=0.2)
        finally:
            server.close()


async def test_an_api_server_that_hangs_up_is_an_error_with_a_sentence():
    async def hang_up(reader, writer):
        await reader.readline()
        writer.close()

    async with fake_api_server(hang_up) as api:
        with pytest.raises(KubeApiError, match="the API server does not answer: Server disconnected"):
            await api.apply({"kind": "Service", "metadata": {"name": "x", "namespace": "y"}})


async def test_an_api_server_that_does_not_answer_in_time_is_an_error_with_a_sentence():
    answered = asyncio.Event()

    async def never_answer(reader, writer):
        await answered.wait()
        writer.close()

    async with fake_api_server(never_answer) as api:
        with pytest.raises(KubeApiError, match="the API server does not answer: TimeoutError"):
            await api.get("Service", "y", "x")
        answered.set()


async def test_an_error_page_of_a_proxy_is_quoted():
    async def bad_gateway(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 11\r\n\r\n<h1>no</h1>")
        writer.close()

    async with fake_api_server(bad_gateway) as api:
        with pytest.raises(KubeApiError, match="<h1>no</h1>") as error:
            await api.get("Service", "y", "x")
    assert error.value.status == 502


async def test_listed_objects_say_what_they_are(api, service):
    (listed,) = await api.list(Selection("InferenceService", service.metadata.namespace))
    assert InferenceService.from_dict(listed) == service
    assert await api.list(Selection("InferenceService", service.metadata.namespace, "no=such")) == []
    everywhere = await api.list(Selection("InferenceService"))
    assert service.metadata.uid in {item["metadata"]["uid"] for item in everywhere}


def config_map(namespace, name):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}}


async def test_a_long_list_comes_in_pages_of_one_version(monkeypatch, api, namespace):
    monkeypatch.setattr(kube, "PAGE", 2)
    for name in "abcde":
        await api.create(config_map(namespace, name))
    pages = [page async for page in api.pages(Selection("ConfigMap", namespace))]
    assert [(page.first, len(page.items)) for page in pages] == [(True, 2), (False, 2), (False, 1)]
    assert len({page.version for page in pages}) == 1
    assert [one["metadata"]["name"] for one in await api.list(Selection("ConfigMap", namespace))] == list("abcde")


async def test_versions_grow_across_names_and_a_list_is_at_least_as_new_as_what_it_holds(api, namespace):
    """The cache relies on it to distinguish old from new."""
    made = [await api.create(config_map(namespace, name)) for name in ("a", "b")]
    await api.delete("ConfigMap", namespace, "a")
    made.append(await api.create(config_map(namespace, "a")))
    versions = [int(one["metadata"]["resourceVersion"]) for one in made]
    assert versions == sorted(set(versions))
    (page,) = [page async for page in api.pages(Selection("ConfigMap", namespace))]
    assert int(page.version) >= versions[-1]


async def test_replicas_that_race_to_create_the_key_share_it(api, kubectl, namespace):
    keys = [LiveAdminKey(api, namespace, "key") for _ in range(8)]
    await asyncio.gather(*(key.refresh() for key in keys))
    assert len({key.current for key in keys}) == 1
    before = keys[0].current
    kubectl.ok("patch", "secret", "key", "-n", namespace, "-p", '{"stringData": {"epoch": "2"}}')
    await keys[0].refresh()
    assert keys[0].current == replace(before, epoch="2")


async def test_the_api_server_decides_who_may_read_the_metrics(api, kubectl, namespace):
    role = f"metrics-of-{namespace}"
    kubectl.ok("create", "clusterrole", role, "--verb=get", "--non-resource-url=/metrics")
    kubectl.ok("create", "clusterrolebinding", role, f"--clusterrole={role}", f"--serviceaccount={namespace}:runner")
    try:
        tokens = {one: kubectl.ok("create", "token", one, "-n", namespace).strip() for one in ("runner", "default")}
        assert await review(api, tokens["runner"]) is Verdict.ALLOWED
        assert await review(api, tokens["default"]) is Verdict.FORBIDDEN
        assert await review(api, tokens["runner"][:-8] + "aaaaaaaa") is Verdict.UNKNOWN
    finally:
        kubectl.ok("delete", "clusterrole,clusterrolebinding", role)
