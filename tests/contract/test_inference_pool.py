"""The InferencePool, its picker's Service and EndpointSlices, on a real API server with the extension's own CRD."""

import json
from dataclasses import replace

import pytest

from inflight_base.kube.difference import needs_apply
from inflight_base.kube.kinds import Selection
from inflight_base.manifest.keys import ServiceKey
from inflight_base.manifest.names import pool_port
from inflight_base.manifest.slices import GatewayAddress
from inflight_operator.api.types import InferenceService
from inflight_operator.apply.children import ChildrenState, sync_children
from inflight_operator.observe.pool_view import PoolParent, pool_parents
from inflight_operator.render.inference_pool import INFERENCE_POOL_API, inference_pool
from inflight_operator.render.service_children import render
from tests.contract.definitions import apis_become, established
from tests.contract.manifests import service_manifest
from tests.contract.test_children import PLAN, SETTINGS
from tools.localcluster.programs import inference_pools
from tools.testbed.install import have_inference_pools

pytestmark = pytest.mark.contract

SERVICE = {"model": {"source": "builtin://smollm2"}, "accelerator": {"count": 0}}
POOL = {**SERVICE, "gateway": {"enabled": True, "inferencePool": {"enabled": True}}}
WITH_KEYS = {**SERVICE, "gateway": {**POOL["gateway"], "auth": {"apiKeysSecret": "chat-keys"}}}
PODS = replace(PLAN, gateway_pods=(GatewayAddress("10.1.0.1"), GatewayAddress("10.1.0.2"), GatewayAddress("fd00::1")))
KINDS = ("InferencePool", "EndpointSlice", "Service")
LONGEST_NAME = "n" * 50


@pytest.fixture(scope="module", autouse=True)
def definition(kubectl):
    """The CRD as the local cluster installs it, gone afterwards: other tests expect a server without this API."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFLIGHT_KUBECONFIG", str(kubectl.kubeconfig))
        have_inference_pools(print)
        try:
            established(kubectl, inference_pools.NAME)
            yield
        finally:
            kubectl.ok("delete", "crd", inference_pools.NAME)


def test_a_cluster_that_has_the_api_keeps_its_own_version(kubectl):
    kubectl.ok("annotate", "crd", inference_pools.NAME, "inference.networking.k8s.io/bundle-version=v9", "--overwrite")
    have_inference_pools(print)
    annotations = kubectl.json("get", "crd", inference_pools.NAME)["metadata"]["annotations"]
    assert annotations["inference.networking.k8s.io/bundle-version"] == "v9"


async def live_of(api, namespace):
    return [one for kind in KINDS for one in await api.list(Selection(kind, namespace, "inflight.dev/service=chat"))]


async def test_the_pool_is_taken_by_the_api_server_and_deleted_when_turned_off(api, make):
    available = await apis_become(api, {INFERENCE_POOL_API})
    settings = replace(
        SETTINGS, available_apis=available, gateway_service="gateway.system.svc.cluster.local", endpoint_picker=True
    )
    service = InferenceService.from_dict(make(POOL))
    namespace, state = service.metadata.namespace, ChildrenState()
    wanted = [one for one in render(service, PODS, settings) if one["kind"] in KINDS]
    changes = await sync_children(api, wanted, [], state, lambda: 0.0)
    assert changes.failed == {}
    live = {(one["kind"], one["metadata"]["name"]): one for one in await live_of(api, namespace)}
    for one in wanted:
        assert not needs_apply(one, live[one["kind"], one["metadata"]["name"]])
    pool = live["InferencePool", "chat"]["spec"]
    assert pool["endpointPickerRef"]["failureMode"] == "FailOpen"
    picker = live["Service", "chat-picker"]["spec"]
    assert picker["clusterIP"] != "None"
    assert pool["endpointPickerRef"]["port"]["number"] == picker["ports"][0]["port"]
    ports = live["EndpointSlice", "chat-picker-ipv4"]["ports"]
    assert [one["port"] for one in ports] == [pool_port(ServiceKey(namespace, "chat"))]
    assert len(live["EndpointSlice", "chat-picker-ipv6"]["endpoints"]) == 1

    off = InferenceService.from_dict(make({**SERVICE, "gateway": {"enabled": True}}))
    fewer = [one for one in render(off, PLAN, settings) if one["kind"] in KINDS]
    changes = await sync_children(api, fewer, list(live.values()), state, lambda: 0.0)
    assert set(changes.deleted) == live.keys() - {("Service", "chat"), ("Service", "chat-engines")}


@pytest.mark.parametrize(("spec", "name"), [(POOL, "chat"), (WITH_KEYS, "chat"), (POOL, LONGEST_NAME)])
def test_the_pool_of_every_service_is_accepted_as_it_is(api_server, make, spec, name):
    wanted = inference_pool(InferenceService.from_dict(make(spec, name)))
    stored = api_server.create(wanted)["spec"]
    assert stored == {**wanted["spec"], "appProtocol": "http"}


def without_port(spec):
    del spec["endpointPickerRef"]["port"]


def without_picker(spec):
    del spec["endpointPickerRef"]


def without_labels(spec):
    spec["selector"]["matchLabels"] = {}


def with_one_port_twice(spec):
    spec["targetPorts"] *= 2


def with_another_mode(spec):
    spec["endpointPickerRef"]["failureMode"] = "Retry"


def with_a_field_of_an_older_api(spec):
    spec["targetPortNumber"] = 8000


REFUSED = {
    without_port: "port is required when kind is 'Service'",
    without_picker: "spec.endpointPickerRef: Required value",
    without_labels: "should have at least 1 properties",
    with_one_port_twice: "port number must be unique",
    with_another_mode: 'supported values: "FailOpen", "FailClose"',
    with_a_field_of_an_older_api: 'unknown field "spec.targetPortNumber"',
}


@pytest.mark.parametrize("change", REFUSED, ids=lambda change: change.__name__)
def test_a_pool_that_breaks_a_rule_of_the_api_is_refused(api_server, make, change):
    pool = inference_pool(InferenceService.from_dict(make(POOL)))
    change(pool["spec"])
    answer = api_server.post(pool, dry_run=True)
    assert answer.is_client_error
    assert REFUSED[change] in answer.json()["message"]


async def test_the_gateways_that_report_on_a_pool_are_read_from_its_status(kubectl, api, api_server, make):
    service = InferenceService.from_dict(make(POOL))
    namespace = service.metadata.namespace
    api_server.create(inference_pool(service))
    report(kubectl, namespace, parent("front", Accepted="True", ResolvedRefs="True"), parent("back", Accepted="False"))
    (pool,) = await api.list(Selection("InferencePool", namespace))
    assert pool_parents(pool) == (
        PoolParent(f"Gateway {namespace}/front"),
        PoolParent(f"Gateway {namespace}/back", "NotSupportedByParent: no such pools"),
    )


def parent(name, **conditions):
    """An entry as a gateway writes it; the API server fills in that the parent is a Gateway."""
    return {
        "parentRef": {"name": name},
        "controllerName": "example.com/gateway",
        "conditions": [
            {
                "type": kind,
                "status": status,
                "reason": kind if status == "True" else "NotSupportedByParent",
                "message": "" if status == "True" else "no such pools",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
            for kind, status in conditions.items()
        ],
    }


def report(kubectl, namespace, *parents):
    patch = json.dumps({"status": {"parents": parents}})
    kubectl.ok("patch", "inferencepool", "chat", "-n", namespace, "--subresource=status", "--type=merge", "-p", patch)


def test_a_pool_needs_the_gateway(kubectl, namespace):
    done = kubectl.apply(service_manifest(namespace, {**SERVICE, "gateway": {"inferencePool": {"enabled": True}}}))
    assert done.returncode != 0
    assert "gateway.inferencePool.enabled needs gateway.enabled true" in done.stderr
