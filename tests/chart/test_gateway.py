"""The chart with gateway.enabled: pods whose parts start and end in order, with least rights."""

import json
from pathlib import Path

import pytest
import yaml

from deploy import envoy_bootstrap
from inflight_base.manifest.names import POOL_PORTS
from inflight_gateway import cli
from inflight_gateway.settings import GATEWAY_KEY_FILE, RUN_DIR, PickerSettings
from inflight_operator.keys import GATEWAY_KEY_SECRET_NAME

CHART = Path(__file__).parents[2] / "helm" / "inflight"
GATEWAY = ("Deployment", "prod-gateway")
OPERATOR = ("Deployment", "prod-operator")
ENABLED = ("--set", "gateway.enabled=true")


@pytest.fixture(scope="module")
def objects(helm):
    return helm.objects(*ENABLED)


def pod_of(objects):
    return objects[GATEWAY]["spec"]["template"]["spec"]


def container_of(objects, name):
    pod = pod_of(objects)
    return next(one for one in (*pod["initContainers"], *pod["containers"]) if one["name"] == name)


def test_without_it_nothing_of_the_gateway_is_rendered_and_the_operator_knows_none(helm):
    plain = helm.objects()
    assert not [name for _, name in plain if "gateway" in name]
    apart = ("CustomResourceDefinition", "Pod")  # the resource has spec.gateway; helm test, a check that is not made
    assert "gateway" not in yaml.safe_dump([one for (kind, _), one in plain.items() if kind not in apart])


def test_it_adds_exactly_these_objects(helm, objects):
    assert set(objects) - set(helm.objects()) == {
        GATEWAY,
        ("Service", "prod-gateway"),
        ("Service", "prod-gateway-state"),
        ("ConfigMap", "prod-gateway-envoy"),
        ("ServiceAccount", "prod-gateway"),
        ("ClusterRole", "prod-gateway"),
        ("ClusterRoleBinding", "prod-gateway"),
        ("Role", "prod-gateway-pods"),
        ("RoleBinding", "prod-gateway-pods"),
        ("NetworkPolicy", "prod-gateway"),
        ("PodDisruptionBudget", "prod-gateway"),
    }


def test_envoys_bootstrap_is_the_one_that_the_program_prints(objects):
    assert envoy_bootstrap.FILE.read_text() == envoy_bootstrap.bootstrap(), (
        "run `python -m deploy.envoy_bootstrap --write`"
    )
    mounted = objects[("ConfigMap", "prod-gateway-envoy")]["data"]["envoy.json"]
    assert json.loads(mounted) == json.loads(envoy_bootstrap.FILE.read_text())


def with_envoys_memory(folder, limit):
    """Flags for a values file, in which Helm reads a number as a float."""
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump({"gateway": {"envoy": {"resources": {"limits": {"memory": limit}}}}}))
    return (*ENABLED, "-f", str(file))


@pytest.mark.parametrize(
    ("limit", "bytes_"),
    [
        ("2Gi", 2 << 30),
        ("512Mi", 512 << 20),
        ("1.5Gi", 3 << 29),
        ("1G", 10**9),
        (1073741824, 1 << 30),
        (1234567890, 1234567890),
        ("1073741824", 1 << 30),
        ("1e9", 10**9),
        ("1E9", 10**9),
        ("1P", 10**15),
        ("1Pi", 1 << 50),
        ("1E", 10**18),
        ("1Ei", 1 << 60),
    ],
)
def test_envoys_heap_is_bounded_by_its_memory_limit(helm, tmp_path, limit, bytes_):
    flags = with_envoys_memory(tmp_path, limit)
    mounted = helm.objects(*flags)[("ConfigMap", "prod-gateway-envoy")]["data"]["envoy.json"]
    heap = json.loads(mounted)["overload_manager"]["resource_monitors"][0]["typed_config"]
    assert heap["max_heap_size_bytes"] == str(bytes_)


@pytest.mark.parametrize("limit", ["1.2.3Gi", "1Zi", "Gi", "-1Gi", "1 Gi", "1500m", "much"])
def test_a_memory_limit_that_is_no_number_of_bytes_is_refused(helm, tmp_path, limit):
    refused = helm.template(*with_envoys_memory(tmp_path, limit))
    assert refused.returncode != 0
    assert "gateway.envoy.resources.limits.memory" in refused.stderr


def test_envoy_and_relay_are_sidecars_so_that_they_end_after_the_picker_has_drained(objects):
    pod = pod_of(objects)
    assert [(one["name"], one["restartPolicy"]) for one in pod["initContainers"]] == [
        ("envoy", "Always"),
        ("relay", "Always"),
    ]
    assert [one["name"] for one in pod["containers"]] == ["picker"]


@pytest.mark.parametrize("seconds", [600, 45])
def test_the_grace_period_is_longer_than_the_drain(helm, seconds):
    given = helm.objects(*ENABLED, "--set", f"gateway.drainSeconds={seconds}")
    assert pod_of(given)["terminationGracePeriodSeconds"] > seconds
    assert f"--drain-max={seconds}" in container_of(given, "picker")["args"]
    arguments = container_of(given, "envoy")["args"]
    assert arguments[arguments.index("--drain-time-s") + 1] == str(seconds)


def understood(objects, name):
    """The program's arguments in the chart, parsed by its own command line."""
    return cli.build_parser().parse_args(container_of(objects, name)["args"])


def test_picker_and_relay_understand_the_arguments_of_the_default_values(objects):
    picker, relay, defaults = understood(objects, "picker"), understood(objects, "relay"), PickerSettings()
    assert (picker.command, relay.command) == ("picker", "relay")
    assert picker.relays == defaults.relays == relay.processes
    assert (picker.drain_max, picker.access_log) == (defaults.drain_max_s, defaults.access_log)
    assert (picker.port, picker.http_port) == (8080, 9003)
    assert picker.namespace == []
    assert picker.peers == "inflight-system/prod-gateway-state"
    assert (picker.cluster_domain, picker.run_dir) == (defaults.cluster_domain, RUN_DIR)


def test_picker_and_relay_understand_the_arguments_of_other_values(helm):
    given = helm.objects(
        *ENABLED,
        *("--set", "gateway.relay.processes=3,gateway.accessLog=false,watchNamespaces={team,search}"),
        *("--set", "logs.format=json,logs.level=debug,clusterDomain=k8s.example"),
    )
    picker, relay = understood(given, "picker"), understood(given, "relay")
    assert picker.relays == relay.processes == 3
    assert (picker.namespace, picker.cluster_domain, picker.access_log) == (["team", "search"], "k8s.example", False)
    assert {(one.log_format, one.log_level) for one in (picker, relay)} == {("json", "debug")}


def test_the_ports_are_those_that_the_picker_gives_envoy_and_listens_on(objects):
    picker = understood(objects, "picker")
    assert container_of(objects, "envoy")["ports"] == [{"name": "http", "containerPort": picker.port}]
    assert container_of(objects, "picker")["ports"] == [{"name": "state", "containerPort": picker.http_port}]
    (port,) = objects[("Service", "prod-gateway")]["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (80, "http")


def test_clients_reach_the_gateway_on_the_port_of_every_service(objects):
    from inflight_operator.render.service import SERVICE_PORT

    assert objects[("Service", "prod-gateway")]["spec"]["ports"][0]["port"] == SERVICE_PORT


def test_the_operator_puts_services_behind_the_gateways_service(helm, objects):
    arguments = objects[OPERATOR]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--gateway-service=prod-gateway.inflight-system.svc.cluster.local" in arguments
    other = helm.objects(*ENABLED, "--set", "clusterDomain=k8s.example")
    arguments = other[OPERATOR]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--gateway-service=prod-gateway.inflight-system.svc.k8s.example" in arguments


def test_the_containers_share_the_sockets_and_nothing_else_is_writable(objects):
    pod = pod_of(objects)
    for container in (*pod["initContainers"], *pod["containers"]):
        mounts = {one["name"]: one for one in container["volumeMounts"]}
        assert mounts["run"]["mountPath"] == str(RUN_DIR)
        assert {name for name, one in mounts.items() if not one.get("readOnly")} <= {"run", "tmp"}
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"]
        assert not context["allowPrivilegeEscalation"]
        assert context["capabilities"] == {"drop": ["ALL"]}
    assert pod["securityContext"]["runAsNonRoot"]
    volumes = {one["name"]: one for one in pod["volumes"]}
    assert volumes["run"]["emptyDir"]
    assert volumes["key"]["secret"] == {"secretName": GATEWAY_KEY_SECRET_NAME, "optional": True}
    assert str(GATEWAY_KEY_FILE.parent) in [one["mountPath"] for one in container_of(objects, "picker")["volumeMounts"]]


def test_only_the_picker_has_the_token_and_the_key(objects):
    pod = pod_of(objects)
    assert pod["automountServiceAccountToken"] is False
    for container in pod["initContainers"]:
        assert not {"account", "key"} & {one["name"] for one in container["volumeMounts"]}
    assert {"account", "key"} <= {one["name"] for one in container_of(objects, "picker")["volumeMounts"]}


def rules_of(role):
    return [
        (group, resource, tuple(rule["verbs"]), tuple(rule.get("resourceNames", ())))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    ]


READ = ("list", "watch")


def test_the_gateway_reads_services_engines_and_named_secrets_and_writes_nothing(objects):
    assert rules_of(objects[("ClusterRole", "prod-gateway")]) == [
        ("inflight.dev", "inferenceservices", READ, ()),
        ("discovery.k8s.io", "endpointslices", READ, ()),
        ("", "secrets", READ, ("inflight-api-keys",)),
    ]
    assert rules_of(objects[("Role", "prod-gateway-pods")]) == [("discovery.k8s.io", "endpointslices", READ, ())]


@pytest.mark.parametrize(("value", "expected"), [("{a,b}", [("a", "b")]), ("{*}", [()]), ("null", [])])
def test_which_secrets_the_gateway_may_read_is_a_value(helm, value, expected):
    setting = "[]" if value == "null" else json.dumps(value.strip("{}").split(","))
    given = helm.objects(*ENABLED, "--set-json", f"gateway.apiKeySecrets={setting}")
    rules = rules_of(given[("ClusterRole", "prod-gateway")])
    assert [names for _, resource, _, names in rules if resource == "secrets"] == expected


def test_with_namespaces_the_gateway_has_rights_in_these_and_sees_its_own_pods(helm):
    done = helm.template(*ENABLED, "--set", "watchNamespaces={team,search}")
    assert done.returncode == 0, done.stderr
    rendered = [one for one in yaml.load_all(done.stdout, yaml.CSafeLoader) if one]
    roles = {
        (one["kind"], one["metadata"]["namespace"])
        for one in rendered
        if one["metadata"]["name"] == "prod-gateway" and one["kind"] in ("Role", "RoleBinding")
    }
    assert roles == {(kind, name) for kind in ("Role", "RoleBinding") for name in ("team", "search")}
    assert not [one for one in rendered if one["kind"] == "ClusterRole" and one["metadata"]["name"] == "prod-gateway"]
    (binding,) = (
        one for one in rendered if one["metadata"]["name"] == "prod-gateway-pods" and one["kind"] == "RoleBinding"
    )
    assert {one["name"] for one in binding["subjects"]} == {"prod-gateway", "prod-operator"}


def test_the_operator_may_make_and_read_the_gateways_key_and_no_other(objects):
    create, read = objects[("Role", "prod-operator-key")]["rules"]
    assert create["verbs"] == ["create"]
    assert read["resourceNames"] == ["prod-operator-key", GATEWAY_KEY_SECRET_NAME]
    assert read["verbs"] == ["get"]
    policy = objects[("ValidatingAdmissionPolicy", "inflight-system-prod-operator-children")]
    (is_key,) = (one["expression"] for one in policy["spec"]["variables"] if one["name"] == "isKey")
    assert 'object.metadata.name in ["prod-operator-key", "inflight-gateway-key"]' in is_key


def test_pods_are_selected_by_their_own_labels_and_not_by_the_operators(objects):
    labels = objects[GATEWAY]["spec"]["template"]["metadata"]["labels"]
    for kind in ("Service", "PodDisruptionBudget", "NetworkPolicy"):
        spec = objects[(kind, "prod-gateway")]["spec"]
        selector = spec.get("podSelector", spec["selector"] if kind != "NetworkPolicy" else None)
        assert selector.get("matchLabels", selector).items() <= labels.items(), kind
    operators = objects[OPERATOR]["spec"]["selector"]["matchLabels"]
    assert not operators.items() <= labels.items()


def test_engines_let_pods_with_the_labels_of_the_chart_in(objects):
    from inflight_base.manifest.names import GATEWAY_LABELS

    assert GATEWAY_LABELS.items() <= objects[GATEWAY]["spec"]["template"]["metadata"]["labels"].items()


def test_the_names_of_pods_come_from_dns_also_while_they_are_not_ready(objects):
    state = objects[("Service", "prod-gateway-state")]["spec"]
    assert (state["clusterIP"], state["publishNotReadyAddresses"]) == ("None", True)


@pytest.mark.parametrize(("kind", "field"), [("ServiceMonitor", "endpoints"), ("PodMonitor", "podMetricsEndpoints")])
def test_the_monitor_selects_what_exists_once(helm, kind, field):
    given = helm.objects(*ENABLED, "--set", f"metrics.monitor.enabled=true,metrics.monitor.kind={kind}")
    monitor = given[(kind, "prod-gateway")]
    assert monitor["spec"][field] == [{"port": "state", "interval": "15s", "honorLabels": True}]
    selected = monitor["spec"]["selector"]["matchLabels"].items()
    services = [
        name for (of, name), one in given.items() if of == "Service" and selected <= one["metadata"]["labels"].items()
    ]
    if kind == "ServiceMonitor":
        assert services == ["prod-gateway-state"]
    else:
        assert selected <= given[GATEWAY]["spec"]["template"]["metadata"]["labels"].items()


def test_clients_and_scrapers_can_be_restricted_while_operator_and_peers_stay(helm):
    peers = json.dumps([{"namespaceSelector": {"matchLabels": {"team": "a"}}}])
    given = helm.objects(
        *ENABLED, "--set-json", f"gateway.clientPeers={peers}", "--set-json", f"networkPolicy.metricsPeers={peers}"
    )
    http, state = given[("NetworkPolicy", "prod-gateway")]["spec"]["ingress"]
    assert http["ports"] == [{"port": "http", "protocol": "TCP"}]
    test, *others = http["from"]
    assert test["podSelector"]["matchLabels"]["app.kubernetes.io/name"] == "inflight-operator-test"
    assert others == json.loads(peers)
    names = [
        one["podSelector"]["matchLabels"]["app.kubernetes.io/name"] for one in state["from"] if "podSelector" in one
    ]
    assert names == ["inflight-operator", "inflight-gateway"]


def test_with_restricted_egress_both_programs_reach_what_they_need(helm):
    given = helm.objects(*ENABLED, "--set", "networkPolicy.egress.enabled=true,watchNamespaces={team}")

    def ports(name):
        rules = given[("NetworkPolicy", name)]["spec"]["egress"]
        return [sorted({port["port"] for port in rule["ports"]}) for rule in rules]

    assert ports("prod-gateway") == [[53, 5353], [443, 6443], [8000], [9003]]
    assert ports("prod-operator") == [[53, 5353], [443, 6443], [8000, 8001], [9003]]


def test_helm_test_asks_the_gateway_where_there_is_one(helm, objects):
    def environment(given):
        return {
            one["name"]: one["value"] for one in given[("Pod", "prod-operator-test")]["spec"]["containers"][0]["env"]
        }

    assert environment(objects)["GATEWAY_URL"] == "http://prod-gateway.inflight-system.svc"
    assert "GATEWAY_URL" not in environment(helm.objects())


def test_one_pod_has_no_disruption_budget(helm):
    assert ("PodDisruptionBudget", "prod-gateway") not in helm.objects(*ENABLED, "--set", "gateway.replicas=1")


def test_a_new_bootstrap_rolls_the_pods(objects):
    annotations = objects[GATEWAY]["spec"]["template"]["metadata"]["annotations"]
    assert len(annotations["inflight.dev/bootstrap"]) == 16


def test_the_image_of_envoy_needs_a_tag_or_a_digest(helm):
    refused = helm.template(*ENABLED, "--set", "gateway.envoy.image.tag=")
    assert "gateway.envoy.image needs a tag or a digest" in refused.stderr
    digest = "sha256:" + "0123456789abcdef" * 4
    pinned = helm.objects(*ENABLED, "--set", f"gateway.envoy.image.tag=,gateway.envoy.image.digest={digest}")
    assert container_of(pinned, "envoy")["image"] == f"envoyproxy/envoy@{digest}"


def test_production_values_spread_two_pods_over_nodes(helm):
    given = helm.objects("--values", str(CHART / "values-production.yaml"))
    assert given[GATEWAY]["spec"]["replicas"] == 2
    assert given[("PodDisruptionBudget", "prod-gateway")]["spec"]["maxUnavailable"] == 1
    pod = pod_of(given)
    strict = [one for one in pod["topologySpreadConstraints"] if one["whenUnsatisfiable"] == "DoNotSchedule"]
    assert [one["topologyKey"] for one in strict] == ["kubernetes.io/hostname"]
    assert pod["priorityClassName"] == "prod-operator"
    for container in (*pod["initContainers"], *pod["containers"]):
        assert set(container["resources"]) == {"requests", "limits"}


def test_the_help_of_a_wrong_value_names_it(helm):
    for setting, sentence in {
        "gateway.replicas=0": "gateway.replicas: Must be greater than or equal to 1",
        "gateway.relay.process=2": "gateway.relay: Additional property process is not allowed",
        "gateway.drainSeconds=0": "gateway.drainSeconds: Must be greater than or equal to 1",
        "gateway.apiKeySecrets={Keys}": "gateway.apiKeySecrets.0: Does not match pattern",
        "clusterDomain=.": "clusterDomain: Does not match pattern",
    }.items():
        assert sentence in helm.template("--set", setting).stderr


def test_other_gateways_reach_the_picker_only_where_its_port_is_set(helm, objects):
    given = helm.objects(*ENABLED, "--set", "gateway.extProcPort=9002,networkPolicy.enabled=true")
    assert (understood(objects, "picker").ext_proc_port, understood(given, "picker").ext_proc_port) == (None, 9002)
    assert understood(given, "picker").ext_proc_tls
    assert {one["name"] for one in objects[("Service", "prod-gateway")]["spec"]["ports"]} == {"http"}
    port = given[("Service", "prod-gateway")]["spec"]["ports"][1]
    assert (port["port"], port["targetPort"]) == (9002, "ext-proc")
    assert "appProtocol" not in port
    assert {"name": "ext-proc", "containerPort": 9002} in container_of(given, "picker")["ports"]
    allowed = given[("NetworkPolicy", "prod-gateway")]["spec"]["ingress"][0]["ports"]
    assert [one["port"] for one in allowed] == ["http", "ext-proc", POOL_PORTS[0]]
    assert allowed[-1]["endPort"] == POOL_PORTS[-1]


def test_the_operator_renders_inference_pools_only_where_the_picker_serves_them(helm):
    for setting, told in (("0", False), ("9002", True)):
        given = helm.objects(*ENABLED, "--set", f"gateway.extProcPort={setting}")
        (container,) = given[OPERATOR]["spec"]["template"]["spec"]["containers"]
        assert ("--gateway-endpoint-picker" in container["args"]) == told


def test_the_port_of_the_picker_can_do_without_tls_and_is_none_of_a_pools(helm):
    given = helm.objects(*ENABLED, "--set", "gateway.extProcPort=9002,gateway.extProcTls=false")
    assert not understood(given, "picker").ext_proc_tls
    assert given[("Service", "prod-gateway")]["spec"]["ports"][1]["appProtocol"] == "kubernetes.io/h2c"
    refused = helm.template("--set", f"gateway.extProcPort={POOL_PORTS[3]}")
    assert "gateway.extProcPort: Must not validate the schema" in refused.stderr
