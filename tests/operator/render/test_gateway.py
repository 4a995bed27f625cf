"""Changes in the children of a service that is behind the gateway, and parts that stay."""

import base64
from dataclasses import replace

from inflight_base.manifest.slices import GatewayAddress
from inflight_operator.render.deployment import template_inputs
from inflight_operator.render.service_children import render
from tests.operator.render.services import CPU, PLAN, SETTINGS, child, engine, make, pod

HOST = "inflight-gateway.inflight-system.svc.cluster.local"
GATEWAY = replace(SETTINGS, gateway_service=HOST)
BEHIND = {**CPU, "gateway": {"enabled": True}}
KEYS = {**CPU, "gateway": {"enabled": True, "auth": {"apiKeysSecret": "keys"}}}
PROMETHEUS = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
GATEWAY_PODS = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "inflight-system"}},
    "podSelector": {"matchLabels": {"app.kubernetes.io/name": "inflight-gateway"}},
}


def services(service, settings=GATEWAY):
    found = (one for one in render(service, PLAN, settings) if one["kind"] == "Service")
    return {one["metadata"]["name"]: one["spec"] for one in found}


def serving_rules(service, settings=GATEWAY):
    rules = child("NetworkPolicy", service, settings=settings)["spec"]["ingress"]
    return [rule for rule in rules if rule["ports"][0]["port"] == "http"]


def test_the_service_keeps_its_address_and_the_engines_have_a_headless_service():
    (engines, front) = services(make(**BEHIND)).items()
    plain = child("Service", make(**CPU))["spec"]
    assert (engines[0], engines[1]["clusterIP"]) == ("chat-engines", "None")
    assert engines[1]["selector"] == plain["selector"]
    assert (front[0], {**front[1], "selector": None}) == ("chat", {**plain, "selector": None})
    labels = child("Deployment", make(**BEHIND), settings=GATEWAY)["spec"]["template"]["metadata"]["labels"]
    assert not front[1]["selector"].items() <= labels.items()


def test_its_endpoints_are_the_gateways_pods():
    plan = replace(PLAN, front_pods=(GatewayAddress("10.0.0.1"), GatewayAddress("fd00::1"), GatewayAddress("10.0.0.2")))
    slices = [one for one in render(make(**BEHIND), plan, GATEWAY) if one["kind"] == "EndpointSlice"]
    assert [(one["metadata"]["name"], one["addressType"]) for one in slices] == [
        ("chat-gateway-ipv4", "IPv4"),
        ("chat-gateway-ipv6", "IPv6"),
    ]
    (port,) = services(make(**BEHIND))["chat"]["ports"]
    for one in slices:
        assert one["metadata"]["labels"]["kubernetes.io/service-name"] == "chat"
        assert one["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] == "inflight-operator"
        assert one["ports"] == [{"name": port["name"], "port": 8080, "protocol": "TCP"}]
    assert [address for one in slices[0]["endpoints"] for address in one["addresses"]] == ["10.0.0.1", "10.0.0.2"]


def test_without_a_gateway_to_run_behind_all_children_are_those_of_a_service_that_asks_for_none():
    asking, other = (render(make(**spec), PLAN, SETTINGS) for spec in (BEHIND, CPU))
    kinds = {one["kind"] for one in other} - {"Deployment"}
    assert [one for one in asking if one["kind"] in kinds] == [one for one in other if one["kind"] in kinds]
    assert pod(make(**BEHIND)) == pod(make(**CPU))


def test_a_gateway_changes_nothing_of_services_that_do_not_ask_for_it():
    assert render(make(**CPU), PLAN, GATEWAY) == render(make(**CPU), PLAN, SETTINGS)


def test_engines_verify_tenants_by_a_key_from_their_secret():
    service, plan = make(**KEYS), replace(PLAN, tenant_keys=("a key", "another"))
    data = child("Secret", service, plan, GATEWAY)["data"]
    assert [base64.b64decode(data[name]) for name in ("tenant-key", "tenant-key-previous")] == [b"a key", b"another"]
    container = engine(service, GATEWAY)
    (flag,) = (one for one in container["command"] if one.startswith("--tenant-key-file="))
    assert flag == "--tenant-key-file=/etc/inflight/admin/tenant-key"
    assert "/etc/inflight/admin" in [mount["mountPath"] for mount in container["volumeMounts"]]


def test_without_api_keys_engines_take_unsigned_requests_and_neither_api_keys_nor_a_rotation_restart_them():
    data = child("Secret", make(**BEHIND), replace(PLAN, tenant_keys=("a key", "another")), GATEWAY)["data"]
    assert base64.b64decode(data["tenant-key"]) == b"none"
    assert "tenant-key-previous" not in data
    progress = [base64.b64decode(data[f"tenant-key-progress{suffix}"]) for suffix in ("", "-previous")]
    assert progress == [b"a key", b"another"]
    assert pod(make(**BEHIND), GATEWAY) == pod(make(**KEYS), GATEWAY)


def test_engines_from_before_take_unsigned_requests_when_the_gateway_is_uninstalled():
    behind = child("Secret", make(**BEHIND), replace(PLAN, tenant_keys=("a key",)), GATEWAY)["data"]
    assert child("Secret", make(**BEHIND))["data"]["tenant-key"] == behind["tenant-key"]
    assert not {"tenant-key", "tenant-key-previous"} & {*child("Secret", make(**KEYS))["data"]}


def test_to_put_a_service_behind_the_gateway_is_a_change_of_its_spec_and_no_upgrade():
    assert template_inputs(make(**BEHIND).spec) != template_inputs(make(**CPU).spec)
    tuned = {**CPU, "gateway": {"enabled": True, "maxAttempts": 5, "hold": {"maxRequests": 7}}}
    assert template_inputs(make(**BEHIND).spec) == template_inputs(make(**tuned).spec)
    assert pod(make(**BEHIND), GATEWAY) == pod(make(**tuned), GATEWAY)


def test_the_gateway_reaches_engines_behind_it_and_their_namespace_does_unless_it_checks_keys():
    (rule,) = serving_rules(make(**BEHIND))
    assert rule["from"] == [{"podSelector": {}}, GATEWAY_PODS]
    (rule,) = serving_rules(make(**KEYS))
    assert rule["from"] == [GATEWAY_PODS]
    (rule,) = serving_rules(make(**KEYS), replace(GATEWAY, admin_peers=(PROMETHEUS,)))
    assert rule["from"] == [GATEWAY_PODS, PROMETHEUS]


def test_no_client_reaches_a_service_with_keys_where_no_gateway_checks_them():
    assert serving_rules(make(**KEYS), SETTINGS) == []
    (rule,) = serving_rules(make(**KEYS), replace(SETTINGS, admin_peers=(PROMETHEUS,)))
    assert rule["from"] == [PROMETHEUS]
