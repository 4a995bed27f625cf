"""The InferencePool of a service, and the Service of its endpoint picker."""

from dataclasses import replace

import pytest

from inflight_base.manifest.keys import ServiceKey
from inflight_base.manifest.names import pod_labels, pool_port
from inflight_base.manifest.slices import GatewayAddress
from inflight_operator.render.inference_pool import INFERENCE_POOL_API
from inflight_operator.render.service_children import CHILD_KINDS, render
from tests.operator.render.services import CPU, PLAN, SETTINGS, make

OURS = replace(
    SETTINGS,
    gateway_service="inflight-gateway.inflight-system.svc.cluster.local",
    endpoint_picker=True,
    available_apis=frozenset({INFERENCE_POOL_API}),
)
POOL = {**CPU, "gateway": {"enabled": True, "inferencePool": {"enabled": True}}}
TWO = replace(PLAN, gateway_pods=(GatewayAddress("10.0.0.1"), GatewayAddress("10.0.0.2")))


def children(spec=POOL, settings=OURS, plan=TWO):
    return {(one["kind"], one["metadata"]["name"]): one for one in render(make(**spec), plan, settings)}


def test_the_pool_selects_the_engines_and_names_the_picker_in_its_own_namespace():
    found = children()
    pool, picker = found["InferencePool", "chat"], found["Service", "chat-picker"]
    assert pool["spec"] == {
        "selector": {"matchLabels": pod_labels("chat")},
        "targetPorts": [{"number": 8000}],
        "endpointPickerRef": {
            "group": "",
            "kind": "Service",
            "name": "chat-picker",
            "port": {"number": 9002},
            "failureMode": "FailOpen",
        },
    }
    template = found["Deployment", "chat"]["spec"]["template"]
    assert pool["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (port,) = template["spec"]["containers"][0]["ports"][:1]
    assert port["containerPort"] == pool["spec"]["targetPorts"][0]["number"]
    assert picker["metadata"]["namespace"] == pool["metadata"]["namespace"] == "team"
    assert "selector" not in picker["spec"]
    assert picker["spec"]["type"] == "ClusterIP"


def test_the_pool_has_the_port_that_a_custom_engine_names():
    engine = {"type": "custom", "image": "example.com/server:1", "custom": {"port": 8080}}
    assert children({**POOL, "engine": engine})["InferencePool", "chat"]["spec"]["targetPorts"] == [{"number": 8080}]


def test_the_endpoints_of_the_picker_are_the_gateways_pods_at_the_port_of_the_pool():
    found = children()
    slice_ = found["EndpointSlice", "chat-picker-ipv4"]
    assert slice_["metadata"]["labels"]["kubernetes.io/service-name"] == "chat-picker"
    assert slice_["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] == "inflight-operator"
    assert slice_["addressType"] == "IPv4"
    assert slice_["endpoints"] == [
        {"addresses": ["10.0.0.1"], "conditions": {"ready": True}},
        {"addresses": ["10.0.0.2"], "conditions": {"ready": True}},
    ]
    (port,) = slice_["ports"]
    (at_service,) = found["Service", "chat-picker"]["spec"]["ports"]
    assert port["port"] == at_service["targetPort"] == pool_port(ServiceKey("team", "chat"))
    assert (port["name"], at_service["port"]) == (at_service["name"], 9002)


def test_each_address_family_has_a_slice():
    both = replace(PLAN, gateway_pods=(GatewayAddress("10.0.0.1"), GatewayAddress("fd00::1")))
    found = {name: one for (kind, name), one in children(plan=both).items() if kind == "EndpointSlice"}
    assert {name: one["addressType"] for name, one in found.items()} == {
        "chat-picker-ipv4": "IPv4",
        "chat-picker-ipv6": "IPv6",
    }
    assert [one["endpoints"][0]["addresses"] for one in found.values()] == [["10.0.0.1"], ["fd00::1"]]


def test_a_picker_that_checks_keys_is_never_bypassed():
    keys = {**CPU, "gateway": {**POOL["gateway"], "auth": {"apiKeysSecret": "keys"}}}
    assert children(keys)["InferencePool", "chat"]["spec"]["endpointPickerRef"]["failureMode"] == "FailClose"


@pytest.mark.parametrize(
    "settings",
    [
        replace(OURS, available_apis=frozenset()),
        replace(OURS, endpoint_picker=False),
        replace(OURS, gateway_service=""),
    ],
)
def test_without_api_picker_or_gateway_there_is_no_pool(settings):
    plain = {**POOL, "gateway": {"enabled": True}}
    assert children(settings=settings).keys() == children(plain, settings).keys()


def test_a_service_that_asks_for_none_has_none():
    asked, plain = children(), children({**CPU, "gateway": {"enabled": True}})
    assert asked.keys() - plain.keys() == {
        ("InferencePool", "chat"),
        ("Service", "chat-picker"),
        ("EndpointSlice", "chat-picker-ipv4"),
    }
    assert {kind for kind, _ in asked} <= set(CHILD_KINDS)
    template = ("Deployment", "chat")
    assert asked[template] == plain[template], "turning it on rolls out no pods"
