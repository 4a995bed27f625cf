"""Children of a service: labels, owner, order, and content."""

import base64
import json
from dataclasses import replace

import pytest

from inflight_base.manifest.names import child_names, pod_labels, selector_string
from inflight_operator.render.service_children import CHILD_KINDS, render
from inflight_settings.limits import Limits, LimitsInForce
from tests.operator.render.services import CPU, PLAN, SETTINGS, child, engine, make

POD_MONITOR = frozenset({"monitoring.coreos.com/v1/PodMonitor"})


def test_every_child_carries_the_labels_and_belongs_to_the_service():
    for manifest in render(make(), PLAN, replace(SETTINGS, available_apis=POD_MONITOR)):
        assert manifest["metadata"]["namespace"] == "team"
        assert manifest["metadata"]["labels"] == {
            "app.kubernetes.io/name": "inflight-engine",
            "app.kubernetes.io/instance": "chat",
            "app.kubernetes.io/managed-by": "inflight",
            "inflight.dev/service": "chat",
        }
        assert manifest["metadata"]["ownerReferences"] == [
            {
                "apiVersion": "inflight.dev/v1alpha1",
                "kind": "InferenceService",
                "name": "chat",
                "uid": "u-1",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]


def test_what_pods_mount_comes_before_the_pods():
    kinds = [manifest["kind"] for manifest in render(make(), PLAN, SETTINGS)]
    assert max(kinds.index("Secret"), kinds.index("ConfigMap")) < kinds.index("Deployment")


def test_a_pod_monitor_is_built_only_where_the_api_exists():
    always = set(CHILD_KINDS) - {"PodMonitor", "InferencePool", "EndpointSlice", "Job", "InferenceService"}
    assert {manifest["kind"] for manifest in render(make(), PLAN, SETTINGS)} == always
    with_api = replace(SETTINGS, available_apis=POD_MONITOR)
    assert {manifest["kind"] for manifest in render(make(), PLAN, with_api)} == always | {"PodMonitor"}
    (endpoint,) = child("PodMonitor", make(), settings=with_api)["spec"]["podMetricsEndpoints"]
    assert endpoint.pop("relabelings")[0] == {"targetLabel": "name", "replacement": "chat"}
    assert endpoint == {"port": "http", "interval": "15s"}


def test_prometheus_scrapes_the_admin_port_of_a_service_without_metrics_on_its_serving_port():
    service = make(engine={"servingMetrics": False})
    monitor = child("PodMonitor", service, settings=replace(SETTINGS, available_apis=POD_MONITOR))
    assert [endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]] == ["admin"]


def test_everything_that_selects_pods_selects_those_of_the_deployment():
    service = make()
    template = child("Deployment", service)["spec"]["template"]["metadata"]["labels"]
    wanted = pod_labels("chat")
    assert wanted.items() <= template.items()
    assert child("Deployment", service)["spec"]["selector"] == {"matchLabels": wanted}
    assert child("Service", service)["spec"]["selector"] == wanted
    assert child("PodDisruptionBudget", service)["spec"]["selector"] == {"matchLabels": wanted}
    assert child("NetworkPolicy", service)["spec"]["podSelector"] == {"matchLabels": wanted}
    assert selector_string(wanted) == "app.kubernetes.io/name=inflight-engine,inflight.dev/service=chat"


def test_the_service_answers_on_port_80_with_the_engines_port():
    (port,) = child("Service", make())["spec"]["ports"]
    assert (port["name"], port["port"], port["targetPort"]) == ("http", 80, "http")


def test_grpc_has_a_port_in_pods_services_and_the_policy_of_services_that_ask_for_it_only():
    host = "inflight-gateway.inflight-system.svc.cluster.local"
    for spec, settings, name in (
        ({}, SETTINGS, "chat"),
        ({"gateway": {"enabled": True}}, replace(SETTINGS, gateway_service=host), "chat-engines"),
    ):
        for grpc in (False, True):
            service = make(engine={"grpc": grpc}, networkPolicy={"from": [{"podSelector": {}}]}, **spec)
            services = (each for each in render(service, PLAN, settings) if each["kind"] == "Service")
            found = {each["metadata"]["name"]: each["spec"]["ports"] for each in services}
            ports = {port["name"]: (port["port"], port["targetPort"]) for port in found[name]}
            assert len(found) == 1 or len(found["chat"]) == 1
            assert ports == {"http": (80, "http"), **({"grpc": (50051, "grpc")} if grpc else {})}
            serving, admin = child("NetworkPolicy", service, settings=settings)["spec"]["ingress"]
            assert [port["port"] for port in serving["ports"]] == ["http", *(["grpc"] if grpc else [])]
            assert {"podSelector": {}} in serving["from"]
            assert len(admin["ports"]) == 1
            container = engine(service, settings)
            assert ({"name": "grpc", "containerPort": 50051, "protocol": "TCP"} in container["ports"]) == grpc
            assert ("--grpc-port=50051" in container["command"]) == grpc


def test_kv_events_have_ports_in_pods_that_ask_for_them_and_the_policy_lets_only_the_gateway_in():
    host = "inflight-gateway.inflight-system.svc.cluster.local"
    settings = replace(SETTINGS, gateway_service=host)
    ports = [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in EVENT_PORTS]
    for kind in ("inflight", "vllm"):
        for kv_events in (False, True):
            for gateway in (False, True):
                service = make(engine={"type": kind, "kvEvents": kv_events}, gateway={"enabled": gateway})
                container = engine(service, settings)
                assert [port for port in container["ports"] if port in ports] == (ports if kv_events else [])
                flags = [flag for flag in container["command"] if flag.startswith("--kv-events-config=")]
                assert len(flags) == kv_events
                assert not flags or json.loads(flags[0].partition("=")[2]) == {
                    "enable_kv_cache_events": True,
                    "publisher": "zmq",
                    "endpoint": "tcp://*:5557",
                    "replay_endpoint": "tcp://*:5558",
                }
                seeded = {"name": "PYTHONHASHSEED", "value": "0"} in container["env"]
                assert seeded == (kv_events and kind == "vllm")
                rules = child("NetworkPolicy", service, settings=settings)["spec"]["ingress"]
                open_to = [rule["from"] for rule in rules if rule["ports"][0]["port"] == "kv-events"]
                assert len(open_to) == (kv_events and gateway)
                assert all(len(peers) == 1 and "podSelector" in peers[0] for peers in open_to)


EVENT_PORTS = (("kv-events", 5557), ("kv-replay", 5558))


@pytest.mark.parametrize("replicas", [0, 2, 5])
def test_replicas_are_the_plans_whatever_the_spec_says(replicas):
    for service in (make(), make(scaling={"mode": "External"}, replicas=3)):
        assert child("Deployment", service, replace(PLAN, replicas=replicas))["spec"]["replicas"] == replicas


def limits_file(service, limits):
    manifest = child("ConfigMap", service, replace(PLAN, limits=limits))
    assert manifest["metadata"]["name"] == child_names("chat").limits
    return json.loads(manifest["data"]["limits.json"])


def test_new_pods_start_with_the_limits_in_force():
    assert limits_file(make(), LimitsInForce(Limits(48, 512), 9)) == {
        "max_num_seqs": 48,
        "max_num_batched_tokens": 512,
        "revision": 9,
    }


def test_limits_above_a_capacity_that_was_lowered_are_held_to_it():
    service = make(engine={"maxNumSeqs": 32, "maxNumBatchedTokens": 256})
    assert limits_file(service, LimitsInForce(Limits(48, 512), 9)) == {
        "max_num_seqs": 32,
        "max_num_batched_tokens": 256,
        "revision": 9,
    }


def test_the_secret_holds_the_token():
    manifest = child("Secret", make())
    assert base64.b64decode(manifest["data"]["token"]) == b"secret"


@pytest.mark.parametrize(
    ("rollout", "evicted"),
    [
        ({}, "10%"),
        ({"maxSurge": "100%"}, "10%"),
        ({"maxUnavailable": 0}, "10%"),
        ({"maxUnavailable": "0%"}, "10%"),
        ({"maxUnavailable": 2}, 2),
        ({"strategy": "ReleaseFirst"}, "10%"),
        ({"strategy": "ReleaseFirst", "maxUnavailable": "25%"}, "25%"),
    ],
)
def test_a_drain_takes_as_many_pods_as_a_rollout_may_leave_missing_and_never_waits_for_one_that_is_not_ready(
    rollout, evicted
):
    spec = child("PodDisruptionBudget", make(rollout=rollout))["spec"]
    assert spec["maxUnavailable"] == evicted
    assert spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


@pytest.mark.parametrize("source", ["builtin://smollm2", "pvc://models/x"])
def test_pods_that_download_nothing_have_no_way_out(source):
    spec = child("NetworkPolicy", make(model={"source": source}))["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in spec


def test_engines_that_read_keys_and_values_of_each_other_have_a_way_to_each_other_and_no_further():
    spec = child("NetworkPolicy", make(engine={"kvCache": {"swap": "4Gi"}}))["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    admin = {"ports": [{"port": 8001, "protocol": "TCP"}], "to": [{"podSelector": {"matchLabels": pod_labels("chat")}}]}
    assert spec["egress"] == [admin]


OPERATOR = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "inflight-system"}},
    "podSelector": {"matchLabels": {"app.kubernetes.io/name": "inflight-operator"}},
}


def ingress(**settings):
    serving, admin = child("NetworkPolicy", make(), settings=replace(SETTINGS, **settings))["spec"]["ingress"]
    assert admin["ports"] == [{"port": "admin", "protocol": "TCP"}]
    return serving, admin.get("from")


def test_the_namespace_reaches_the_serving_port_and_only_the_operator_the_admin_port():
    serving, admin = ingress()
    assert serving == {"ports": [{"port": "http", "protocol": "TCP"}], "from": [{"podSelector": {}}]}
    assert admin == [OPERATOR]


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("gateway", [False, True])
@pytest.mark.parametrize(
    "engine", [{}, {"grpc": True}, {"type": "vllm"}, {"type": "vllm", "plugin": False}, {"servingMetrics": False}]
)
def test_no_port_is_open_to_all_unless_a_list_says_so(engine, gateway, pool):
    """Policies add up: such a rule would override one of the namespace that denies by default."""
    settings = replace(SETTINGS, gateway_service="inflight-gateway.inflight-system.svc.cluster.local")
    spec = {"engine": engine, "gateway": {"enabled": gateway, "inferencePool": {"enabled": pool}}}
    prometheus = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    for peers in ((), (prometheus,)):
        rules = child("NetworkPolicy", make(**spec), settings=replace(settings, admin_peers=peers))["spec"]["ingress"]
        assert all(rule["from"] for rule in rules)
        assert {"podSelector": {}} in rules[0]["from"]
        assert all(peer in rules[0]["from"] for peer in peers)
        assert not [rule for rule in rules[1:] if {"podSelector": {}} in rule["from"]]
    everyone = [{"namespaceSelector": {}}, {"ipBlock": {"cidr": "0.0.0.0/0"}}]
    asked = child("NetworkPolicy", make(networkPolicy={"from": everyone}, **spec), settings=settings)
    assert asked["spec"]["ingress"][0]["from"][:2] == everyone


def test_peers_that_the_operator_was_installed_with_reach_the_admin_port_too():
    prometheus = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    assert ingress(admin_peers=(prometheus,))[1] == [OPERATOR, prometheus]


def test_the_admin_port_is_open_to_an_operator_outside_the_cluster_which_has_no_pods_to_name():
    assert ingress(operator_namespace=None)[1] is None


def test_the_serving_port_is_open_to_the_clients_that_the_spec_names_and_to_the_gateway():
    clients = [
        {"podSelector": {}},
        {"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "Exists"}]}},
        {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
    ]
    host = "inflight-gateway.inflight-system.svc.cluster.local"
    for spec, settings, more in (
        ({}, SETTINGS, 0),
        ({"gateway": {"enabled": True}}, replace(SETTINGS, gateway_service=host), 1),
        ({"gateway": {"enabled": True}}, SETTINGS, 0),
    ):
        service = make(networkPolicy={"from": clients}, **spec)
        serving, _ = child("NetworkPolicy", service, settings=settings)["spec"]["ingress"]
        assert (serving["ports"][0]["port"], serving["from"][:3], len(serving["from"])) == ("http", clients, 3 + more)


@pytest.mark.parametrize("engine", [{}, {"type": "vllm"}])
def test_the_gateway_may_connect_until_it_sends_no_more_requests_to_a_service_that_left_it(engine):
    """Requests that came through it failed for up to 15 minutes."""
    settings = replace(SETTINGS, gateway_service="inflight-gateway.inflight-system.svc.cluster.local")
    spec = {"networkPolicy": {"from": [{"podSelector": {}}]}, "engine": engine}
    before = child("NetworkPolicy", make(gateway={"enabled": True}, **spec), settings=settings)
    assert child("NetworkPolicy", make(**spec), replace(PLAN, leaving=True), settings) == before
    assert child("NetworkPolicy", make(**spec), PLAN, settings) != before


def test_an_empty_list_of_clients_closes_the_serving_port_and_none_leaves_it_to_the_namespace():
    (admin,) = child("NetworkPolicy", make(networkPolicy={"from": []}))["spec"]["ingress"]
    assert admin["ports"][0]["port"] == "admin"
    serving, _ = child("NetworkPolicy", make(networkPolicy={}))["spec"]["ingress"]
    assert serving["from"] == [{"podSelector": {}}]


def test_services_that_name_no_clients_let_those_of_the_installation_in():
    settings = replace(SETTINGS, client_peers=({"podSelector": {"matchLabels": {"may": "ask"}}},))
    serving = child("NetworkPolicy", make(), settings=settings)["spec"]["ingress"][0]
    assert serving["from"] == [*settings.client_peers]
    own = child("NetworkPolicy", make(networkPolicy={"from": [{"podSelector": {}}]}), settings=settings)
    assert own["spec"]["ingress"][0]["from"] == [{"podSelector": {}}]
    keyed = make(gateway={"enabled": True, "auth": {"apiKeysSecret": "keys"}})
    assert child("NetworkPolicy", keyed, settings=settings) == child("NetworkPolicy", keyed)


def test_an_operator_reads_metrics_on_the_serving_port_of_engines_that_have_no_other():
    plain = make(engine={"type": "vllm", "plugin": False}, networkPolicy={"from": [{"podSelector": {}}]})
    serving = child("NetworkPolicy", plain)["spec"]["ingress"][0]
    assert serving["from"] == [{"podSelector": {}}, OPERATOR]
    outside = child("NetworkPolicy", plain, settings=replace(SETTINGS, operator_namespace=None))
    assert "from" not in outside["spec"]["ingress"][0]


def test_pods_that_download_their_model_keep_their_way_out():
    for source in ("hf://a/b", "s3://a/b", "gs://a/b", "az://a/b", "https://a/b"):
        assert child("NetworkPolicy", make(model={"source": source}))["spec"]["policyTypes"] == ["Ingress"]


@pytest.mark.parametrize(
    ("rollout", "surge", "unavailable"),
    [
        ({}, "10%", 0),
        ({"maxSurge": 3}, 3, 0),
        ({"maxSurge": "100%", "maxUnavailable": 1}, "100%", 1),
        ({"strategy": "ReleaseFirst"}, 0, "10%"),
        ({"strategy": "ReleaseFirst", "maxUnavailable": 4, "maxSurge": "5%"}, "5%", 4),
    ],
)
def test_the_bounds_of_a_rollout_are_the_deployments(rollout, surge, unavailable):
    rolling = child("Deployment", make(rollout=rollout, **CPU))["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxSurge": surge, "maxUnavailable": unavailable}


def test_a_rollout_that_may_release_takes_the_bounds_of_release_first():
    for rollout, unavailable in (({}, "10%"), ({"maxUnavailable": 0}, "10%"), ({"maxUnavailable": 3}, 3)):
        made = render(make(rollout={"releaseAfter": "5m", **rollout}), replace(PLAN, release=True), SETTINGS)
        (deployment,) = (one for one in made if one["kind"] == "Deployment")
        assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": unavailable}
