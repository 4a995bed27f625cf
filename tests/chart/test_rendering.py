"""The chart's objects, for the default values and for others."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from inflight_base.manifest.units import Share
from inflight_operator.render.plan import ModelCache

PROJECT = Path(__file__).parents[2]
CHART = PROJECT / "helm" / "inflight"
OPERATOR = ("Deployment", "prod-operator")


def pod_of(objects):
    return objects[OPERATOR]["spec"]["template"]


def arguments_of(objects):
    return pod_of(objects)["spec"]["containers"][0]["args"]


def rules_of(objects):
    return {
        (group, resource): set(rule["verbs"])
        for rule in objects[("ClusterRole", "prod-operator")]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def test_lint_is_strict_and_clean(helm):
    output = helm.ok("lint", "--strict", str(CHART))
    assert "1 chart(s) linted, 0 chart(s) failed" in output


def test_default_values_render_exactly_these_objects(helm):
    assert set(helm.objects()) == {
        ("CustomResourceDefinition", "inferenceservices.inflight.dev"),
        ("ServiceAccount", "prod-operator"),
        ("ClusterRole", "prod-operator"),
        ("ClusterRoleBinding", "prod-operator"),
        ("Role", "prod-operator-leader"),
        ("RoleBinding", "prod-operator-leader"),
        ("Role", "prod-operator-key"),
        ("RoleBinding", "prod-operator-key"),
        ("ClusterRole", "prod-inferenceservices-view"),
        ("ClusterRole", "prod-inferenceservices-edit"),
        ("ValidatingAdmissionPolicy", "inflight-system-prod-operator-children"),
        ("ValidatingAdmissionPolicyBinding", "inflight-system-prod-operator-children"),
        ("ValidatingAdmissionPolicy", "inflight-system-prod-operator-pods"),
        ("ValidatingAdmissionPolicyBinding", "inflight-system-prod-operator-pods"),
        ("Service", "prod-operator-metrics"),
        ("NetworkPolicy", "prod-operator"),
        OPERATOR,
        ("Pod", "prod-operator-test"),
    }


def test_the_rendered_definition_is_the_generated_one_plus_labels_and_the_keep_policy(helm):
    rendered = helm.objects()[("CustomResourceDefinition", "inferenceservices.inflight.dev")]
    generated = yaml.safe_load((PROJECT / "crds" / "inflight.dev_inferenceservices.yaml").read_text())
    assert rendered["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert rendered["spec"] == generated["spec"]
    assert (CHART / "files" / "crd.yaml").read_text() == (
        PROJECT / "crds" / "inflight.dev_inferenceservices.yaml"
    ).read_text()


def test_the_definition_can_be_left_out_or_given_up_to_uninstall(helm):
    crd = ("CustomResourceDefinition", "inferenceservices.inflight.dev")
    assert crd not in helm.objects("--set", "crds.install=false")
    assert "annotations" not in helm.objects("--set", "crds.keep=false")[crd]["metadata"]


def test_images_take_the_chart_version_unless_a_tag_is_given(helm):
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    objects = helm.objects()
    assert pod_of(objects)["spec"]["containers"][0]["image"] == f"inflight-operator:{version}"
    assert f"--engine-image=inflight-engine:{version}" in arguments_of(objects)
    objects = helm.objects(
        "--set", "image.repository=registry.example:5000/team/operator,image.tag=dev,engine.image.tag=dev"
    )
    assert pod_of(objects)["spec"]["containers"][0]["image"] == "registry.example:5000/team/operator:dev"
    assert objects[("Pod", "prod-operator-test")]["spec"]["containers"][0]["image"].endswith("operator:dev")
    assert "--engine-image=inflight-engine:dev" in arguments_of(objects)


def test_pods_of_vllm_get_the_plugin_from_the_operators_image_and_vllm_from_its_own(helm):
    objects = helm.objects("--set", "image.repository=registry.example/operator,image.tag=dev,vllm.image.tag=v0.31.0")
    assert flag(objects, "plugin-image") == ["registry.example/operator:dev"]
    assert flag(objects, "vllm-image") == ["vllm/vllm-openai:v0.31.0"]
    refused = helm.template("--set", "vllm.image.tag=")
    assert "vllm.image needs a tag or a digest" in refused.stderr


DIGEST = "sha256:" + "0123456789abcdef" * 4


def test_a_digest_takes_precedence_over_the_tag(helm):
    objects = helm.objects(
        "--set", f"image.tag=dev,image.digest={DIGEST},engine.image.tag=dev,engine.image.digest={DIGEST}"
    )
    assert pod_of(objects)["spec"]["containers"][0]["image"] == f"inflight-operator@{DIGEST}"
    assert objects[("Pod", "prod-operator-test")]["spec"]["containers"][0]["image"] == f"inflight-operator@{DIGEST}"
    assert flag(objects, "engine-image") == [f"inflight-engine@{DIGEST}"]


PEERS = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]


def started_with(helm, monkeypatch, *flags):
    """The options that the operator's own command line makes of what the chart renders."""
    from inflight_operator import cli

    started = []

    async def start(options):
        started.append(options)
        return 0

    monkeypatch.setattr(cli, "run_operator", start)
    assert cli.main(arguments_of(helm.objects(*flags))) == 0
    (options,) = started
    return options


def test_the_operator_understands_the_arguments_of_the_default_values(helm, monkeypatch):
    options = started_with(helm, monkeypatch)
    assert (options.kubeconfig, options.metrics_port, options.interval) == (None, 8080, 3)
    assert (options.leader_elect, options.lease_name) == (True, "prod-operator")
    assert (options.namespaces, options.admin_peers) == ((), ())
    assert (options.upgrade, options.upgrades_at_once, options.upgrades_stuck) == (
        "Paced",
        Share(1),
        Share(10, percent=True),
    )
    assert options.class_name == "inflight"


def test_the_operator_understands_the_arguments_of_other_values(helm, monkeypatch):
    options = started_with(
        helm,
        monkeypatch,
        *("--set", "watchNamespaces={team,search},leaderElection.enabled=false,interval=7"),
        *("--set", "engine.upgrade.mode=Held,engine.upgrade.servicesAtOnce=5%,engine.upgrade.stuckServices=0"),
        *("--set", "operator.className=second"),
        *("--set-json", f"engine.adminPeers={json.dumps(PEERS)}"),
        *("--set-json", f"engine.clientPeers={json.dumps(PEERS[:1])}"),
        *("--set", "engine.modelCache.claimName=models,engine.modelCache.size=1Ti,engine.modelCache.namespaces={team}"),
    )
    assert options.model_cache == ModelCache("models", "", 2**40, frozenset({"team"}))
    assert (options.leader_elect, options.interval) == (False, 7)
    assert (options.namespaces, options.admin_peers) == (("team", "search"), tuple(PEERS))
    assert options.client_peers == tuple(PEERS[:1])
    assert (options.upgrade, options.upgrades_at_once, options.upgrades_stuck) == (
        "Held",
        Share(5, percent=True),
        Share(0),
    )
    assert options.class_name == "second"


def flag(objects, name):
    """All values of a flag, in order."""
    pairs = [argument.removeprefix("--").partition("=") for argument in arguments_of(objects)]
    return [value for given, _, value in pairs if given == name]


def test_services_are_moved_to_a_new_engine_release_at_the_pace_of_the_values(helm):
    assert (flag(helm.objects(), "engine-upgrade"), flag(helm.objects(), "engine-upgrades-at-once")) == (
        ["Paced"],
        ["1"],
    )
    given = helm.objects("--set", "engine.upgrade.mode=AtOnce,engine.upgrade.servicesAtOnce=7")
    assert (flag(given, "engine-upgrade"), flag(given, "engine-upgrades-at-once")) == (["AtOnce"], ["7"])


def test_peers_of_the_admin_port_arrive_as_one_json_list_and_none_by_default(helm):
    assert flag(helm.objects(), "admin-peers") == []
    (given,) = flag(helm.objects("--set-json", f"engine.adminPeers={json.dumps(PEERS)}"), "admin-peers")
    assert json.loads(given) == PEERS


def test_the_operator_follows_only_the_namespaces_it_may_read(helm):
    objects = by_namespace(helm, "--set", "watchNamespaces={team,search}")
    assert flag({OPERATOR: objects[(*OPERATOR, "inflight-system")]}, "namespace") == ["team", "search"]
    for namespace in ("team", "search"):
        role = objects[("Role", "prod-operator", namespace)]
        assert {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create", "patch"]} in role["rules"]
        (subject,) = objects[("RoleBinding", "prod-operator", namespace)]["subjects"]
        assert (subject["name"], subject["namespace"]) == ("prod-operator", "inflight-system")
    assert not [key for key in objects if key[0] == "ClusterRoleBinding" or key[:2] == ("ClusterRole", "prod-operator")]


def by_namespace(helm, *flags):
    """Rendered objects by kind, name and namespace: the same role is made in several namespaces."""
    done = helm.template(*flags)
    assert done.returncode == 0, done.stderr
    found = [o for o in yaml.load_all(done.stdout, yaml.CSafeLoader) if o]
    return {(o["kind"], o["metadata"]["name"], o["metadata"].get("namespace")): o for o in found}


def test_the_key_of_the_operator_is_the_only_secret_it_can_read(helm):
    objects = helm.objects()
    create, read = objects[("Role", "prod-operator-key")]["rules"]
    assert (create["resources"], create["verbs"]) == (["secrets"], ["create"])
    assert (read["resourceNames"], read["verbs"]) == (["prod-operator-key"], ["get"])
    assert flag(objects, "key-secret") == ["prod-operator-key"]


def test_services_are_in_the_roles_that_users_have_already(helm):
    objects = helm.objects()

    def aggregated(role):
        prefix = "rbac.authorization.k8s.io/aggregate-to-"
        return {key.removeprefix(prefix) for key in objects[role]["metadata"]["labels"] if key.startswith(prefix)}

    assert aggregated(("ClusterRole", "prod-inferenceservices-view")) == {"view", "edit", "admin"}
    assert aggregated(("ClusterRole", "prod-inferenceservices-edit")) == {"edit", "admin"}
    viewing = objects[("ClusterRole", "prod-inferenceservices-view")]["rules"]
    assert {verb for rule in viewing for verb in rule["verbs"]} == {"get", "list", "watch"}
    second = helm.objects("--set", "crds.install=false")
    assert ("ClusterRole", "prod-inferenceservices-view") not in second


def test_the_admission_policies_bind_the_account_that_the_operator_runs_as(helm):
    objects = helm.objects("--set", "serviceAccount.name=robot")
    policies = [o for (kind, _), o in objects.items() if kind == "ValidatingAdmissionPolicy"]
    bindings = {
        o["spec"]["policyName"] for (kind, _), o in objects.items() if kind == "ValidatingAdmissionPolicyBinding"
    }
    assert bindings == {policy["metadata"]["name"] for policy in policies}
    account = f"system:serviceaccount:inflight-system:{pod_of(objects)['spec']['serviceAccountName']}"
    for policy in policies:
        (condition,) = policy["spec"]["matchConditions"]
        assert condition["expression"] == f'request.userInfo.username == "{account}"'


def test_the_admission_policies_can_be_left_out(helm):
    kinds = {kind for kind, _ in helm.objects("--set", "admissionPolicy.enabled=false")}
    assert not [kind for kind in kinds if kind.startswith("ValidatingAdmission")]


def test_every_kind_that_the_operator_may_change_is_bound_by_an_admission_policy(helm):
    objects = helm.objects("--set", "gateway.enabled=true,gateway.extProcPort=9002")
    bound = {
        (group, resource)
        for (kind, _), policy in objects.items()
        if kind == "ValidatingAdmissionPolicy"
        for rule in policy["spec"]["matchConstraints"]["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    changed = {key for key, verbs in rules_of(objects).items() if verbs & {"patch", "delete"}}
    assert bound == changed - {("inflight.dev", "inferenceservices/status")}


def test_the_lease_of_the_leader_is_the_only_one_the_operator_can_read_or_change(helm):
    objects = helm.objects()
    create, rest = objects[("Role", "prod-operator-leader")]["rules"]
    assert create["verbs"] == ["create"]
    assert (rest["resourceNames"], rest["verbs"]) == (["prod-operator"], ["get", "update"])
    assert "--lease-name=prod-operator" in arguments_of(objects)


def test_two_releases_in_one_namespace_do_not_wait_for_each_others_lease(helm):
    objects = helm.objects("--set", "fullnameOverride=second,watchNamespaces={team},crds.install=false")
    container = objects[("Deployment", "second-operator")]["spec"]["template"]["spec"]["containers"][0]
    assert "--lease-name=second-operator" in container["args"]
    assert objects[("Role", "second-operator-leader")]["rules"][1]["resourceNames"] == ["second-operator"]


def test_rights_have_no_wildcard_and_cover_the_children_and_nothing_that_escalates(helm):
    from inflight_base.kube.kinds import RESOURCES
    from inflight_operator.render.service_children import CHILD_KINDS

    rules = rules_of(helm.objects("--set", "gateway.enabled=true,gateway.extProcPort=9002"))
    for kind in CHILD_KINDS:
        version, plural = RESOURCES[kind]
        group = version.rpartition("/")[0]
        secret = {"create", "patch"}
        expected = secret if kind == "Secret" else {*secret, "get", "list", "watch", "delete"}
        assert rules.pop((group, plural)) == expected, kind
    assert rules == {
        ("inflight.dev", "inferenceservices/status"): {"patch"},
        ("inflight.dev", "inferenceservices/finalizers"): {"update"},
        ("", "pods"): {"get", "list", "watch", "patch"},
        ("events.k8s.io", "events"): {"create"},
        ("", "persistentvolumeclaims"): {"get"},
        ("", "nodes"): {"list"},
    }


@pytest.mark.parametrize("setting", ["gateway.extProcPort=9002", "gateway.enabled=true"])
def test_without_the_gateway_or_its_port_for_others_the_operator_writes_no_pools(helm, setting):
    rules = rules_of(helm.objects("--set", setting))
    assert ("inference.networking.k8s.io", "inferencepools") not in rules


def test_one_replica_has_no_disruption_budget_and_two_have_one(helm):
    budget = ("PodDisruptionBudget", "prod-operator")
    assert budget not in helm.objects()
    objects = helm.objects("--set", "replicas=2")
    assert objects[budget]["spec"]["maxUnavailable"] == 1
    assert objects[budget]["spec"]["selector"] == objects[OPERATOR]["spec"]["selector"]


def test_two_replicas_without_a_leader_are_refused(helm):
    done = helm.template("--set", "replicas=2,leaderElection.enabled=false")
    assert done.returncode != 0
    assert "replicas above 1 need leaderElection.enabled" in done.stderr


def test_without_a_leader_the_old_pod_goes_first_and_no_lease_is_needed(helm):
    objects = helm.objects("--set", "leaderElection.enabled=false")
    assert objects[OPERATOR]["spec"]["strategy"] == {"type": "Recreate"}
    assert ("Role", "prod-operator-leader") not in objects


@pytest.mark.parametrize(("kind", "field"), [("ServiceMonitor", "endpoints"), ("PodMonitor", "podMetricsEndpoints")])
def test_the_monitor_selects_what_exists(helm, kind, field):
    objects = helm.objects(
        "--set", f"metrics.monitor.enabled=true,metrics.monitor.kind={kind},metrics.monitor.labels.release=prometheus"
    )
    monitor = objects[(kind, "prod-operator")]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"][field] == [{"port": "metrics", "interval": "15s", "honorLabels": True}]
    selected = monitor["spec"]["selector"]["matchLabels"].items()
    target = objects[("Service", "prod-operator-metrics")] if kind == "ServiceMonitor" else pod_of(objects)
    assert selected <= target["metadata"]["labels"].items()


AUTHENTICATED = "metrics.authentication.enabled=true,metrics.monitor.enabled=true"


def test_metrics_with_authentication_have_the_rights_for_it_and_one_role_for_readers(helm):
    assert not [name for _, name in helm.objects() if "metrics-auth" in name or "metrics-reader" in name]
    given = helm.objects("--set", AUTHENTICATED)
    assert "--metrics-authentication" in given[OPERATOR]["spec"]["template"]["spec"]["containers"][0]["args"]
    rights = given[("ClusterRole", "inflight-system-prod-operator-metrics-auth")]["rules"]
    assert [(one["resources"], one["verbs"]) for one in rights] == [
        (["tokenreviews"], ["create"]),
        (["subjectaccessreviews"], ["create"]),
    ]
    assert given[("ClusterRoleBinding", "inflight-system-prod-operator-metrics-auth")]["subjects"]
    (rule,) = given[("ClusterRole", "inflight-system-prod-operator-metrics-reader")]["rules"]
    assert rule == {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}


def test_the_monitor_sends_a_token_to_metrics_with_authentication(helm):
    own = helm.objects("--set", AUTHENTICATED)[("ServiceMonitor", "prod-operator")]["spec"]["endpoints"][0]
    assert own["bearerTokenFile"] == "/var/run/secrets/kubernetes.io/serviceaccount/token"
    secret = ("--set", f"{AUTHENTICATED},metrics.authentication.tokenSecret=token-of-prometheus")
    (given,) = helm.objects(*secret)[("ServiceMonitor", "prod-operator")]["spec"]["endpoints"]
    assert given["authorization"] == {"type": "Bearer", "credentials": {"name": "token-of-prometheus", "key": "token"}}
    pods = helm.objects(*secret, "--set", "metrics.monitor.kind=PodMonitor")[("PodMonitor", "prod-operator")]
    assert pods["spec"]["podMetricsEndpoints"][0]["authorization"] == given["authorization"]
    refused = helm.template("--set", f"{AUTHENTICATED},metrics.monitor.kind=PodMonitor")
    assert "a PodMonitor needs metrics.authentication.tokenSecret" in refused.stderr


def test_services_and_budgets_select_the_operator_and_not_the_test_pod(helm):
    objects = helm.objects()
    selector = objects[("Service", "prod-operator-metrics")]["spec"]["selector"]
    assert selector.items() <= pod_of(objects)["metadata"]["labels"].items()
    assert not selector.items() <= objects[("Pod", "prod-operator-test")]["metadata"]["labels"].items()


def test_labels_of_the_user_cannot_take_the_pods_out_of_their_selector(helm):
    objects = helm.objects("--set-json", 'podLabels={"team":"a","app.kubernetes.io/name":"other"}')
    labels = pod_of(objects)["metadata"]["labels"]
    assert labels["team"] == "a"
    assert objects[OPERATOR]["spec"]["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("replica=2", "Additional property replica is not allowed"),
        ("image.tags=dev", "image: Additional property tags is not allowed"),
        ("metrics.monitor.kind=Other", "metrics.monitor.kind: metrics.monitor.kind must be one of the following"),
        ("replicas=many", "replicas: Invalid type. Expected: integer, given: string"),
        ("image.repository=operator:dev", "image.repository: Does not match pattern"),
        ("resources.request.cpu=1", "resources: Additional property request is not allowed"),
        ("tolerations[0].keys=a", "tolerations.0: Additional property keys is not allowed"),
        ("metrics.port=80", "metrics.port: Must be greater than or equal to 1024"),
        ("watchNamespaces={Team}", "watchNamespaces.0: Does not match pattern"),
        ("watchNamespace=team", "Additional property watchNamespace is not allowed"),
        ("engine.upgrade.mode=Slow", "engine.upgrade.mode: engine.upgrade.mode must be one of the following"),
        ("engine.upgrade.servicesAtOnce=0", "engine.upgrade.servicesAtOnce: Must be greater than or equal to 1"),
        ("engine.upgrade.servicesAtOnce=0%", "engine.upgrade.servicesAtOnce: Does not match pattern"),
        ("engine.upgrade.stuckServices=101%", "engine.upgrade.stuckServices: Does not match pattern"),
        ("operator.className=Team", "operator.className: Does not match pattern"),
        ("engine.adminPeers[0].namespace=a", "engine.adminPeers.0: Additional property namespace is not allowed"),
        ("image.digest=0123", "image.digest: Does not match pattern"),
        ("engine.image.pullPolicy=Sometimes", "engine.image.pullPolicy must be one of the following"),
        ("extraEnv[0].name=POD_NAME", "extraEnv.0.name: Must not validate the schema"),
        ("networkPolicy.egress.apiServerPorts={0}", "apiServerPorts.0: Must be greater than or equal to 1"),
        ("priorityClass.value=1000000001", "priorityClass.value: Must be less than or equal to 1e+09"),
        ("topologySpreadConstraints[0].maxSkew=1", "topologySpreadConstraints.0: topologyKey is required"),
        ("terminationGracePeriodSeconds=0", "terminationGracePeriodSeconds: Must be greater than or equal to 1"),
        ("image=null", "image is required"),
    ],
)
def test_wrong_values_are_refused_with_the_name_of_the_value(helm, setting, sentence):
    done = helm.template("--set", setting)
    assert done.returncode != 0
    assert sentence in done.stderr


def test_every_value_is_described_where_it_is_set():
    lines = [line.strip() for line in (CHART / "values.yaml").read_text().splitlines()]
    inside_resources = ("requests:", "limits:", "cpu:", "memory:")  # as Kubernetes has them
    undescribed = [
        line
        for before, line in pairwise(["", *lines])
        if line and not line.startswith(("#", *inside_resources)) and not before.startswith("#")
    ]
    assert undescribed == []


def test_the_schema_allows_no_unknown_value_at_any_depth():
    def open_objects(node, path):
        if isinstance(node, dict):
            if "properties" in node and node.get("additionalProperties") is not False:
                yield path
            for key, value in node.items():
                yield from open_objects(value, f"{path}/{key}")

    schema = json.loads((CHART / "values.schema.json").read_text())
    assert list(open_objects(schema, "")) == []


def test_decisions_are_recorded_only_where_asked_for_into_a_volume_that_holds_the_recording(helm):
    plain = helm.objects()
    assert not [one for one in arguments_of(plain) if one.startswith("--record")]
    assert [one["name"] for one in pod_of(plain)["spec"]["volumes"]] == ["tmp"]
    asked = helm.objects(
        "--set",
        "recordDecisions.enabled=true,recordDecisions.size=100",
        "--set",
        "recordDecisions.services={team/chat}",
    )
    recording = [one for one in arguments_of(asked) if one.startswith("--record")]
    assert recording == ["--record-decisions=/recording", "--record-size=100", "--record-service=team/chat"]
    (volume,) = (one for one in pod_of(asked)["spec"]["volumes"] if one["name"] == "recording")
    assert volume["emptyDir"] == {"sizeLimit": "116Mi"}
    mounts = pod_of(asked)["spec"]["containers"][0]["volumeMounts"]
    assert {"name": "recording", "mountPath": "/recording"} in mounts


def test_a_service_to_record_is_a_namespace_and_a_name(helm):
    assert helm.template("--set", "recordDecisions.services={chat}").returncode != 0


@pytest.mark.parametrize(
    "wrong",
    [
        "claimName=models,engine.modelCache.hostPath=/var/cache/inflight",
        "hostPath=cache",
        "hostPath=/var/../etc",
        "claimName=Models",
        "size=-1Gi",
        "namespaces={A}",
    ],
)
def test_model_caches_that_cannot_be_are_refused(helm, wrong):
    assert "engine/modelCache" in helm.template("--set", f"engine.modelCache.{wrong}").stderr.replace(".", "/")


def test_no_pod_mounts_a_folder_of_its_node_unless_the_chart_names_one(helm, monkeypatch):
    assert started_with(helm, monkeypatch).model_cache is None
    options = started_with(helm, monkeypatch, "--set", "engine.modelCache.hostPath=/var/cache/inflight")
    assert options.model_cache == ModelCache("", "/var/cache/inflight", 100 * 2**30)
