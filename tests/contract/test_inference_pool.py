"""The API server takes the InferencePool, its picker's Service and EndpointSlices, and needs nothing twice."""

from dataclasses import replace

import pytest

from inflight_operator.api import InferenceService
from inflight_operator.apply import sync_children
from inflight_operator.apply.children import ChildrenState
from inflight_operator.apply.difference import needs_apply
from inflight_operator.render import render
from inflight_operator.render.inference_pool import INFERENCE_POOL_API, pool_port
from inflight_operator.render.plan import GatewayAddress
from tests.contract.definitions import apis_become, established
from tests.contract.manifests import service_manifest
from tests.contract.test_children import PLAN, SETTINGS

pytestmark = pytest.mark.contract

CRD = "inferencepools.inference.networking.k8s.io"
SERVICE = {"model": {"source": "builtin://smollm2"}, "accelerator": {"count": 0}}
POOL = {**SERVICE, "gateway": {"enabled": True, "inferencePool": {"enabled": True}}}
PODS = replace(PLAN, gateway_pods=(GatewayAddress("10.1.0.1"), GatewayAddress("10.1.0.2"), GatewayAddress("fd00::1")))
KINDS = ("InferencePool", "EndpointSlice", "Service")


def number(**more):
    return {"type": "integer", "format": "int32", "minimum": 1, "maximum": 65535, **more}


PORT = {"type": "object", "required": ["number"], "properties": {"number": number()}}
SPEC = {
    "type": "object",
    "required": ["endpointPickerRef", "selector", "targetPorts"],
    "properties": {
        "selector": {
            "type": "object",
            "required": ["matchLabels"],
            "properties": {
                "matchLabels": {
                    "type": "object",
                    "minProperties": 1,
                    "additionalProperties": {"type": "string", "maxLength": 63},
                }
            },
        },
        "targetPorts": {
            "type": "array",
            "minItems": 1,
            "maxItems": 8,
            "items": PORT,
            "x-kubernetes-list-type": "atomic",
        },
        "endpointPickerRef": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "group": {"type": "string", "default": "", "maxLength": 253},
                "kind": {"type": "string", "default": "Service", "minLength": 1, "maxLength": 63},
                "name": {"type": "string", "minLength": 1, "maxLength": 253},
                "port": PORT,
                "failureMode": {"type": "string", "default": "FailClose", "enum": ["FailOpen", "FailClose"]},
            },
            "x-kubernetes-validations": [
                {"rule": "self.kind != 'Service' || has(self.port)", "message": "port is required of a Service"}
            ],
        },
    },
}
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": CRD, "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"}},
    "spec": {
        "group": "inference.networking.k8s.io",
        "scope": "Namespaced",
        "names": {"kind": "InferencePool", "plural": "inferencepools", "singular": "inferencepool"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "required": ["spec"],
                        "properties": {
                            "spec": SPEC,
                            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                        },
                    }
                },
            }
        ],
    },
}
"""The fields, defaults, bounds and rules of release 1.2 of the Gateway API Inference Extension."""


@pytest.fixture
def with_api(kubectl):
    kubectl.create(DEFINITION)
    try:
        established(kubectl, CRD)
        yield
    finally:
        kubectl.ok("delete", "crd", CRD)


async def live_of(api, namespace):
    return [one for kind in KINDS for one in await api.list(kind, namespace, "inflight.dev/service=chat")]


async def test_the_pool_is_taken_by_the_api_server_and_deleted_when_turned_off(kubectl, api, make, with_api):
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
    assert live["Service", "chat-picker"]["spec"]["clusterIP"] != "None"
    ports = live["EndpointSlice", "chat-picker-ipv4"]["ports"]
    assert [one["port"] for one in ports] == [pool_port(namespace, "chat")]
    assert len(live["EndpointSlice", "chat-picker-ipv6"]["endpoints"]) == 1

    off = InferenceService.from_dict(make({**SERVICE, "gateway": {"enabled": True}}))
    fewer = [one for one in render(off, PLAN, settings) if one["kind"] in KINDS]
    changes = await sync_children(api, fewer, list(live.values()), state, lambda: 0.0)
    assert set(changes.deleted) == live.keys() - {("Service", "chat"), ("Service", "chat-engines")}


def test_a_pool_needs_the_gateway(kubectl, namespace):
    done = kubectl.apply(service_manifest(namespace, {**SERVICE, "gateway": {"inferencePool": {"enabled": True}}}))
    assert done.returncode != 0
    assert "gateway.inferencePool.enabled needs gateway.enabled true" in done.stderr
