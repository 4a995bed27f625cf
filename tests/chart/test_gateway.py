"""The chart with gateway.enabled: pods whose parts start and end in order, with least rights."""

import dataclasses
import json
from pathlib import Path

import pytest
import yaml

from inflight_base.manifest.names import POOL_PORTS
from inflight_gateway import cli, flags
from inflight_gateway.settings import GATEWAY_KEY_FILE, LINK_PORT, RUN_DIR, EnvoySettings, PickerSettings
from inflight_operator.keys import COMMON_GATEWAY_KEY_SECRET_NAME

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
        ("ServiceAccount", "prod-gateway"),
        ("ClusterRole", "prod-gateway"),
        ("ClusterRoleBinding", "prod-gateway"),
        ("Role", "prod-gateway-pods"),
        ("RoleBinding", "prod-gateway-pods"),
        ("NetworkPolicy", "prod-gateway"),
        ("PodDisruptionBudget", "prod-gateway"),
    }


def envoy_settings(given):
    """Envoy's settings, as the program that writes its configuration understands its arguments."""
    arguments = [one.replace("$(ENVOY_MEMORY)", "512") for one in container_of(given, "config")["args"]]
    parsed = cli.build_parser().parse_args(arguments)
    return parsed.output, flags.envoy_settings(parsed)


def test_envoy_reads_the_configuration_that_the_program_has_written(objects):
    output, settings = envoy_settings(objects)
    assert str(output) in container_of(objects, "envoy")["args"]
    assert output.parent == RUN_DIR
    defaults = EnvoySettings()
    assert settings == dataclasses.replace(defaults, memory=512 << 20, requests_per_second=500)


def test_envoys_heap_is_bounded_by_its_memory_limit(helm, objects):
    (variable,) = container_of(objects, "config")["env"]
    limit = {"containerName": "envoy", "resource": "limits.memory", "divisor": "1Mi"}
    assert variable["valueFrom"] == {"resourceFieldRef": limit}
    # Without a limit the field would be the memory of the node.
    without = helm.objects(*ENABLED, "--set", "gateway.envoy.resources.limits.memory=null")
    assert "env" not in container_of(without, "config")
    assert envoy_settings(without)[1].memory == EnvoySettings().memory


def test_requests_of_an_address_are_limited_unless_the_value_is_0(helm):
    for value in (0, 20):
        given = helm.objects(*ENABLED, "--set", f"gateway.requestsPerSecondPerClient={value}")
        assert envoy_settings(given)[1].requests_per_second == value


def test_pages_of_the_origins_that_the_value_names_may_ask(helm, objects):
    assert envoy_settings(objects)[1].allowed_origins == ()
    origins = ["https://chat.example", "http://localhost:3000", "*"]
    given = helm.objects(*ENABLED, "--set-json", f"gateway.allowedOrigins={json.dumps(origins)}")
    assert envoy_settings(given)[1].allowed_origins == tuple(origins)
    for wrong in ("chat.example", "https://Chat.example", "https://chat.example/", "https://*.example"):
        refused = helm.template(*ENABLED, "--set-json", f"gateway.allowedOrigins=[{json.dumps(wrong)}]")
        assert refused.returncode
        assert "allowedOrigins" in refused.stderr


TLS = (*ENABLED, "--set", "gateway.tls.secretName=front")


def ports_of(given):
    service = [(one["name"], one["port"]) for one in given[("Service", "prod-gateway")]["spec"]["ports"]]
    policy = given[("NetworkPolicy", "prod-gateway")]["spec"]["ingress"][0]["ports"]
    assert [one["port"] for one in policy] == [name for name, _ in service]
    ports = container_of(given, "envoy")["ports"]
    assert [one["name"] for one in ports] == [name for name, _ in service]
    settings = envoy_settings(given)[1]
    expected = {"http": settings.port, "https": settings.tls_port}
    assert all(one["containerPort"] == expected[one["name"]] for one in ports)
    return service


def test_tls_is_a_port_more_and_the_only_one_where_that_is_set(helm, objects):
    assert ports_of(objects) == [("http", 80)]
    both, only = helm.objects(*TLS), helm.objects(*TLS, "--set", "gateway.tls.only=true")
    assert ports_of(both) == [("http", 80), ("https", 443)]
    assert ports_of(only) == [("https", 443)]
    assert (envoy_settings(both)[1].port, envoy_settings(only)[1].port) == (8080, 0)
    assert container_of(only, "envoy")["readinessProbe"]["tcpSocket"]["port"] == "https"
    (mount,) = (one for one in container_of(both, "envoy")["volumeMounts"] if one["name"] == "tls")
    assert (mount["mountPath"], mount["readOnly"]) == (str(envoy_settings(both)[1].tls_dir), True)
    assert {"name": "tls", "secret": {"secretName": "front"}} in pod_of(both)["volumes"]
    refused = helm.template(*ENABLED, "--set", "gateway.tls.only=true")
    assert "gateway.tls.only needs gateway.tls.secretName" in refused.stderr


JWT = (*ENABLED, "--set", "gateway.jwt.issuer=https://issuer.example,gateway.jwt.audiences={a,b}")


def test_tokens_are_verified_with_the_keys_of_a_secret_or_of_a_server(helm, objects):
    assert envoy_settings(objects)[1].jwt is None
    local = helm.objects(*JWT, "--set", "gateway.jwt.jwksSecret=keys,gateway.jwt.tenantClaim=realm.team")
    jwt = envoy_settings(local)[1].jwt
    assert (jwt.issuer, jwt.audiences, jwt.tenant_claim) == ("https://issuer.example", ("a", "b"), "realm.team")
    mounts = {one["name"]: one["mountPath"] for one in container_of(local, "envoy")["volumeMounts"]}
    assert (mounts["jwks"], jwt.jwks_file.name) == (str(jwt.jwks_file.parent), "jwks.json")
    uri = "gateway.jwt.jwksUri=https://issuer.example:8443/keys,gateway.jwt.caSecret=ca"
    remote = helm.objects(*JWT, "--set", f"{uri},networkPolicy.egress.enabled=true")
    jwt = envoy_settings(remote)[1].jwt
    assert (jwt.jwks_file, jwt.jwks_uri) == (None, "https://issuer.example:8443/keys")
    mounts = {one["name"]: one["mountPath"] for one in container_of(remote, "envoy")["volumeMounts"]}
    assert (mounts["jwks-ca"], jwt.jwks_ca.name) == (str(jwt.jwks_ca.parent), "ca.crt")
    egress = remote[("NetworkPolicy", "prod-gateway")]["spec"]["egress"]
    assert {"ports": [{"port": 8443, "protocol": "TCP"}]} in egress


@pytest.mark.parametrize("keys", ["", ",gateway.jwt.jwksSecret=keys,gateway.jwt.jwksUri=https://issuer.example/keys"])
def test_an_issuer_needs_keys_of_one_source(helm, keys):
    refused = helm.template(*JWT[:-1], f"{JWT[-1]}{keys}")
    assert "needs either gateway.jwt.jwksSecret or gateway.jwt.jwksUri" in refused.stderr


def test_the_autoscaler_replaces_the_number_of_pods(helm, objects):
    assert ("HorizontalPodAutoscaler", "prod-gateway") not in objects
    values = "gateway.autoscaling.enabled=true,gateway.envoy.threads=3,gateway.relay.processes=4,gateway.replicas=1"
    given = helm.objects(*ENABLED, "--set", f"{values},gateway.autoscaling.targetCPUPercent=50")
    assert "replicas" not in given[GATEWAY]["spec"]
    spec = given[("HorizontalPodAutoscaler", "prod-gateway")]["spec"]
    assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "prod-gateway"}
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 10)
    metrics = [one["containerResource"] for one in spec["metrics"]]
    targets = {one["container"]: one["target"] for one in metrics}
    assert {one["name"] for one in metrics} == {"cpu"}
    assert targets == {
        name: {"type": "AverageValue", "averageValue": value}
        for name, value in {"envoy": "1500m", "relay": "2000m", "picker": "500m"}.items()
    }
    pod = pod_of(given)
    assert targets.keys() <= {one["name"] for one in (*pod["initContainers"], *pod["containers"])}
    assert ("PodDisruptionBudget", "prod-gateway") in given


def test_usage_is_in_the_pod_or_in_a_claim(helm, objects):
    given = helm.objects(*ENABLED, "--set", "gateway.usage.existingClaim=usage")
    for one, volume in ((objects, {"emptyDir": {}}), (given, {"persistentVolumeClaim": {"claimName": "usage"}})):
        assert {"name": "usage", **volume} in pod_of(one)["volumes"]
        (mount,) = (each for each in container_of(one, "picker")["volumeMounts"] if each["name"] == "usage")
        assert mount["mountPath"] == str(understood(one, "picker").usage_dir)
    assert pod_of(given)["securityContext"]["fsGroup"] == pod_of(given)["securityContext"]["runAsGroup"]


def test_a_model_chooses_services_of_the_namespaces_of_a_value(helm, objects):
    given = helm.objects(*ENABLED, "--set", "gateway.modelNamespaces={team,search}")
    assert understood(objects, "picker").model_namespace == []
    assert understood(given, "picker").model_namespace == ["team", "search"]


def test_sidecars_end_after_the_picker_has_drained_envoy_before_the_relay(objects):
    pod = pod_of(objects)
    assert [(one["name"], one.get("restartPolicy")) for one in pod["initContainers"]] == [
        ("config", None),
        ("relay", "Always"),
        ("envoy", "Always"),
    ]
    assert [one["name"] for one in pod["containers"]] == ["picker"]


def test_a_picker_that_hangs_is_replaced_within_a_minute_whatever_its_pod_may_take_to_drain(helm):
    liveness = container_of(helm.objects(*ENABLED), "picker")["livenessProbe"]
    failed = liveness.get("failureThreshold", 3) * liveness["periodSeconds"] + liveness["timeoutSeconds"]
    assert failed + liveness["terminationGracePeriodSeconds"] <= 60


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
    assert relay.processes == envoy_settings(objects)[1].relays
    assert (picker.drain_max, picker.access_log) == (defaults.drain_max_s, defaults.access_log)
    assert picker.http_port == defaults.http_port
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
    assert envoy_settings(given)[1].relays == relay.processes == 3
    assert (picker.namespace, picker.cluster_domain, picker.access_log) == (["team", "search"], "k8s.example", False)
    assert {(one.log_format, one.log_level) for one in (picker, relay)} == {("json", "debug")}


def test_the_ports_are_those_that_envoy_and_picker_listen_on(objects):
    picker = understood(objects, "picker")
    assert container_of(objects, "envoy")["ports"] == [{"name": "http", "containerPort": EnvoySettings().port}]
    assert container_of(objects, "picker")["ports"] == [
        {"name": "state", "containerPort": picker.http_port},
        {"name": "link", "containerPort": LINK_PORT},
    ]
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


def test_the_containers_share_the_sockets_and_only_usage_is_kept_besides(objects):
    pod = pod_of(objects)
    for container in (*pod["initContainers"], *pod["containers"]):
        mounts = {one["name"]: one for one in container["volumeMounts"]}
        assert mounts["run"]["mountPath"] == str(RUN_DIR)
        assert {name for name, one in mounts.items() if not one.get("readOnly")} <= {"run", "tmp", "usage"}
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"]
        assert not context["allowPrivilegeEscalation"]
        assert context["capabilities"] == {"drop": ["ALL"]}
    assert pod["securityContext"]["runAsNonRoot"]
    volumes = {one["name"]: one for one in pod["volumes"]}
    assert volumes["run"]["emptyDir"]
    assert volumes["key"]["projected"]["sources"][-1] == {"secret": {"name": "prod-gateway-key", "optional": True}}
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
    assert read["resourceNames"] == ["prod-operator-key", "prod-gateway-key", COMMON_GATEWAY_KEY_SECRET_NAME]
    assert read["verbs"] == ["get"]
    policy = objects[("ValidatingAdmissionPolicy", "inflight-system-prod-operator-children")]
    (is_key,) = (one["expression"] for one in policy["spec"]["variables"] if one["name"] == "isKey")
    assert 'object.metadata.name in ["prod-operator-key", "prod-gateway-key"]' in is_key


def test_two_releases_in_a_namespace_have_keys_of_their_own(helm, objects):
    other = helm.objects(*ENABLED, "--set", "fullnameOverride=other")
    volumes = [
        one
        for one in other[("Deployment", "other-gateway")]["spec"]["template"]["spec"]["volumes"]
        if one["name"] == "key"
    ]
    assert volumes[0]["projected"]["sources"][-1]["secret"]["name"] == "other-gateway-key"
    names = other[("Role", "other-operator-key")]["rules"][1]["resourceNames"]
    assert "prod-gateway-key" not in names


def test_a_gateway_pod_has_the_key_of_release_0_2_until_the_operator_copied_it_and_no_previous_one(objects):
    volumes = {one["name"]: one for one in pod_of(objects)["volumes"]}
    common, own = (one["secret"] for one in volumes["key"]["projected"]["sources"])
    assert common["name"] == COMMON_GATEWAY_KEY_SECRET_NAME
    assert common["items"] == [{"key": "key", "path": "key"}]
    assert "items" not in own  # the API server refuses two sources whose items have one path


def test_a_release_whose_name_of_the_secret_stays_has_it_once(helm):
    given = helm.objects(*ENABLED, "--set", "fullnameOverride=inflight")
    volumes = {
        one["name"]: one for one in given[("Deployment", "inflight-gateway")]["spec"]["template"]["spec"]["volumes"]
    }
    secret = {"name": COMMON_GATEWAY_KEY_SECRET_NAME, "optional": True}
    assert volumes["key"]["projected"]["sources"] == [{"secret": secret}]
    names = given[("Role", "inflight-operator-key")]["rules"][1]["resourceNames"]
    assert names == ["inflight-operator-key", COMMON_GATEWAY_KEY_SECRET_NAME]


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


def test_clients_and_scrapers_can_be_restricted_while_operator_and_gateway_pods_stay(helm):
    peers = json.dumps([{"namespaceSelector": {"matchLabels": {"team": "a"}}}])
    given = helm.objects(
        *ENABLED, "--set-json", f"gateway.clientPeers={peers}", "--set-json", f"networkPolicy.metricsPeers={peers}"
    )
    http, state, link = given[("NetworkPolicy", "prod-gateway")]["spec"]["ingress"]
    assert http["ports"] == [{"port": "http", "protocol": "TCP"}]
    test, *others = http["from"]
    assert test["podSelector"]["matchLabels"]["app.kubernetes.io/name"] == "inflight-operator-test"
    assert others == json.loads(peers)
    assert allowed(state) == ["inflight-operator"]
    assert allowed(link) == ["inflight-gateway"]


def test_without_peers_requests_come_from_pods_of_the_cluster_and_scrapes_from_the_namespace(helm):
    http, state, _ = helm.objects(*ENABLED)[("NetworkPolicy", "prod-gateway")]["spec"]["ingress"]
    assert http["from"][1:] == [{"namespaceSelector": {}}]
    assert allowed(state | {"from": state["from"][:1]}) == ["inflight-operator"]
    assert state["from"][1:] == [{"podSelector": {}}]


def allowed(rule):
    return [one["podSelector"]["matchLabels"]["app.kubernetes.io/name"] for one in rule["from"] if "podSelector" in one]


def test_only_gateway_pods_reach_the_port_between_pickers_and_relays_of_other_pods(helm):
    """Also where clients and scrapers are not restricted."""
    *_, link = helm.objects(*ENABLED)[("NetworkPolicy", "prod-gateway")]["spec"]["ingress"]
    assert link["ports"] == [{"port": "link", "protocol": "TCP"}]
    (peer,) = link["from"]
    assert allowed(link) == ["inflight-gateway"]
    assert peer.keys() == {"podSelector"}


def test_with_restricted_egress_both_programs_reach_what_they_need(helm):
    given = helm.objects(*ENABLED, "--set", "networkPolicy.egress.enabled=true,watchNamespaces={team}")

    def ports(name):
        rules = given[("NetworkPolicy", name)]["spec"]["egress"]
        return [sorted({port["port"] for port in rule.get("ports", ())}) for rule in rules]

    any_of_engines = []  # an engine of type custom has the ports that its spec names
    assert ports("prod-gateway") == [[53, 5353], [443, 6443], any_of_engines, [9005]]
    assert ports("prod-operator") == [[53, 5353], [443, 6443], any_of_engines, [9003]]
    for name in ("prod-gateway", "prod-operator"):
        (peer,) = given[("NetworkPolicy", name)]["spec"]["egress"][2]["to"]
        assert peer["podSelector"] == {"matchLabels": {"app.kubernetes.io/name": "inflight-engine"}}


def test_helm_test_asks_the_gateway_where_there_is_one(helm, objects):
    def environment(given):
        return {
            one["name"]: one["value"] for one in given[("Pod", "prod-operator-test")]["spec"]["containers"][0]["env"]
        }

    assert environment(objects)["GATEWAY_URL"] == "http://prod-gateway.inflight-system.svc"
    assert "GATEWAY_URL" not in environment(helm.objects())


def test_one_pod_has_no_disruption_budget(helm):
    assert ("PodDisruptionBudget", "prod-gateway") not in helm.objects(*ENABLED, "--set", "gateway.replicas=1")


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
        "gateway.jwt.jwksUri=http://issuer/keys": "gateway.jwt.jwksUri: Does not match pattern",
        "gateway.modelNamespaces={a.b}": "gateway.modelNamespaces.0: Does not match pattern",
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
