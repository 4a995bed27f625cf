"""Every rendered child against a real API server: accepted, restricted, applied once, and owned by its service."""

import copy
from dataclasses import replace
from random import Random
from time import monotonic

import pytest

from inflight_base.kube.difference import needs_apply
from inflight_base.kube.kinds import Selection
from inflight_base.manifest.names import child_names, pod_labels, selector_string
from inflight_base.manifest.slices import GatewayAddress
from inflight_operator.api.gateway import Gateway
from inflight_operator.api.types import InferenceService
from inflight_operator.apply.children import UNREAD_KINDS, ChildConflictError, ChildrenState, sync_children
from inflight_operator.render.monitor import POD_MONITOR_API
from inflight_operator.render.plan import ChildPlan, ModelCache, Settings
from inflight_operator.render.service import no_pods
from inflight_operator.render.service_children import CHILD_KINDS, render
from inflight_settings.limits import Limits, LimitsInForce
from tests.contract.definitions import apis_become, established

pytestmark = pytest.mark.contract

SETTINGS = Settings(
    engine_image="localhost/engine:test",
    operator_namespace="inflight-system",
    plugin_image="example.com/operator:1",
    gateway_service="inflight-gateway.inflight-system.svc.cluster.local",
    admin_peers=(
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},
        {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
    ),
    model_cache=ModelCache(claim="models", host_path="", size=10**12),
)
PLAN = ChildPlan(replicas=2, limits=LimitsInForce(Limits(64, 1024), 7), admin_token="secret", spec_digest="spec")

SPECS = {
    "behind the gateway": {
        "model": {"source": "builtin://smollm2"},
        "accelerator": {"count": 0},
        "gateway": {"enabled": True, "auth": {"apiKeysSecret": "chat-keys"}},
        "scaling": {"minReplicas": 0},
    },
    "prompts on other engines": {
        "model": {"source": "builtin://smollm2"},
        "accelerator": {"count": 0},
        "gateway": {"enabled": True, "tenants": [{"name": "acme", "weight": 2}]},
        "engine": {
            "kvCache": {"swap": "4Gi"},
            "scheduling": {"classes": [{"name": "chat", "slo": {"ttftP95": "1s"}}, {"name": "batch", "weight": 0.5}]},
        },
        "slo": {"ttftP95": "1500ms"},
        "cost": {"pricePerReplicaHour": "2.50", "currency": "EUR"},
        "tuning": {"override": {"maxNumSeqs": 4, "until": "2030-01-01T00:00:00Z"}},
        "disaggregation": {
            "mode": "Fixed",
            "prefill": {
                "template": {
                    "labels": {"desk": "seven"},
                    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
                    "resources": {"requests": {"cpu": "0.5", "memory": "1024Mi"}, "limits": {"cpu": 2}},
                    "env": [{"name": "EMPTY", "value": ""}],
                    "volumes": [{"name": "cache", "emptyDir": {"sizeLimit": "2048Mi"}}],
                    "volumeMounts": [{"name": "cache", "mountPath": "/cache", "readOnly": False}],
                    "topologySpreadConstraints": [{"topologyKey": "topology.kubernetes.io/zone"}],
                },
            },
        },
    },
    "four lines": {"model": {"source": "builtin://smollm2"}, "accelerator": {"count": 0}},
    "a GPU": {"model": {"source": "hf://Qwen/Qwen3-8B", "servedName": "qwen", "storage": "40Gi"}},
    "a claim": {"model": {"source": "pvc://models/qwen3/8b"}, "rollout": {"strategy": "ReleaseFirst"}},
    "bounds of a rollout": {
        "model": {"source": "builtin://smollm2"},
        "rollout": {"maxSurge": "25%", "maxUnavailable": 2, "releaseAfter": "5m"},
        "className": "inflight",
        "networkPolicy": {
            "from": [
                {"podSelector": {}, "namespaceSelector": {"matchLabels": {"team": "search"}}},
                {"namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}},
                {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
            ]
        },
    },
    "vLLM": {"model": {"source": "builtin://smollm2"}, "accelerator": {"count": 0}, "engine": {"type": "vllm"}},
    "a server of another type": {
        "model": {"source": "pvc://models/llama"},
        "engine": {"type": "custom", "image": "example.com/server:1", "custom": {"port": 8080, "metricsPort": 9000}},
        "rollout": {"drainTimeout": "90s"},
    },
    "everything in the template": {
        "model": {"source": "builtin://smollm2"},
        "accelerator": {"count": 0},
        "engine": {
            "kvCache": {"memory": "512Mi", "swap": "1500M"},
            "maxModelLen": 2048,
            "extraArgs": ["--block-size=32"],
        },
        "template": {
            "labels": {"desk": "seven"},
            "annotations": {"example.com/a": "b"},
            "nodeSelector": {"kubernetes.io/arch": "amd64", "pool": "llm"},
            "tolerations": [
                {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"},
                {"key": "slow", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30},
            ],
            "affinity": {
                "podAntiAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {
                            "weight": 1,
                            "podAffinityTerm": {
                                "topologyKey": "kubernetes.io/hostname",
                                "labelSelector": {"matchLabels": {"team": "search"}},
                            },
                        }
                    ]
                }
            },
            "resources": {"requests": {"cpu": "0.5", "memory": "1024Mi"}, "limits": {"cpu": 2}},
            "env": [
                {"name": "EMPTY", "value": ""},
                {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token", "optional": True}}},
                {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            ],
            "envFrom": [{"configMapRef": {"name": "more", "optional": True}, "prefix": "A_"}],
            "volumes": [
                {"name": "cache", "emptyDir": {"sizeLimit": "2048Mi"}},
                {"name": "settings", "configMap": {"name": "more", "items": [{"key": "a", "path": "b"}]}},
                {
                    "name": "mixed",
                    "projected": {"sources": [{"configMap": {"name": "more"}}, {"secret": {"name": "hf"}}]},
                },
                {
                    "name": "info",
                    "downwardAPI": {
                        "items": [
                            {"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}},
                            {"path": "m", "resourceFieldRef": {"containerName": "engine", "resource": "limits.memory"}},
                        ]
                    },
                },
            ],
            "volumeMounts": [{"name": "cache", "mountPath": "/cache", "readOnly": False}],
            "topologySpreadConstraints": [
                {"topologyKey": "topology.kubernetes.io/zone"},
                {
                    "topologyKey": "kubernetes.io/hostname",
                    "maxSkew": 2,
                    "whenUnsatisfiable": "DoNotSchedule",
                    "minDomains": 2,
                    "nodeAffinityPolicy": "Honor",
                    "nodeTaintsPolicy": "Honor",
                    "matchLabelKeys": ["pod-template-hash"],
                },
            ],
            "schedulerName": "volcano",
            "serviceAccountName": "runner",
            "imagePullSecrets": [{"name": "registry"}],
        },
    },
}


@pytest.fixture(params=SPECS)
def service(request, make):
    return InferenceService.from_dict(make(SPECS[request.param]))


@pytest.fixture
def simple(make):
    return InferenceService.from_dict(make(SPECS["four lines"]))


ONLY_SOME = ("PodMonitor", "InferencePool", "EndpointSlice", "Job", "InferenceService")
"""Kinds of children that a simple service in a bare cluster does not have."""

READ_KINDS = [kind for kind in CHILD_KINDS if kind not in ("PodMonitor", "InferencePool", *UNREAD_KINDS)]


class Operator:
    """The children of one service, kept as the operator keeps them: without reading Secrets."""

    def __init__(self, api, service):
        self.api, self.service, self.state = api, service, ChildrenState()

    async def live(self):
        selector, namespace = selector_string(pod_labels(self.service.metadata.name)), self.service.metadata.namespace
        return [child for kind in READ_KINDS for child in await self.api.list(Selection(kind, namespace, selector))]

    async def sync(self, wanted):
        return await sync_children(self.api, wanted, await self.live(), self.state, monotonic)

    async def applied(self, wanted):
        """Names of what was written; nothing may be refused."""
        changes = await self.sync(wanted)
        assert changes.failed == {}
        return tuple(named(changes.applied))


def named(children):
    return sorted(f"{child['kind']}/{child['metadata']['name']}" for child in children)


def without_secrets(children):
    return [child for child in children if child["kind"] not in UNREAD_KINDS]


async def test_the_api_server_accepts_every_child(api, service):
    for child in render(service, PLAN, SETTINGS):
        accepted = await api.apply(child, dry_run=True)
        assert accepted["metadata"]["name"] == child["metadata"]["name"]


async def test_a_cache_on_the_node_is_accepted(api, make):
    service = InferenceService.from_dict(make({"model": {"source": "s3://models/qwen"}}))
    settings = replace(SETTINGS, model_cache=ModelCache(claim="", host_path="/var/cache/inflight", size=10**12))
    (deployment,) = (child for child in render(service, PLAN, settings) if child["kind"] == "Deployment")
    accepted = await api.apply(deployment, dry_run=True)
    mounts = accepted["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert [each["subPath"] for each in mounts if "subPath" in each] == [service.metadata.namespace]


async def test_jobs_that_fetch_a_model_are_accepted_restricted_and_stay_as_they_are(api, make, kubectl):
    model = {"source": "s3://models/qwen", "prefetch": {"nodeSelector": {"example.com/disk": "fast", "zone": ""}}}
    service = InferenceService.from_dict(
        make({"model": model, "template": SPECS["everything in the template"]["template"]})
    )
    settings = replace(SETTINGS, model_cache=ModelCache(claim="models", host_path="", size=10**12))
    plan = replace(PLAN, prefetch_run="run", prefetch=("models",))
    wanted, operator = render(service, plan, settings), Operator(api, service)
    applied = await operator.applied(wanted)
    assert "NetworkPolicy/chat-prefetch" in applied
    (name,) = (name for name in applied if name.startswith("Job/chat-fetch-"))
    assert await operator.applied(wanted) == ()
    (job,) = (child for child in wanted if child["kind"] == "Job")
    pod = copy.deepcopy(job["spec"]["template"]) | {"apiVersion": "v1", "kind": "Pod"}
    pod["metadata"] |= {"name": "probe", "namespace": service.metadata.namespace}
    accepted = kubectl.apply(pod, dry_run=True)
    assert accepted.returncode == 0, accepted.stderr
    assert "would violate" not in accepted.stderr
    without = await operator.sync(render(service, PLAN, settings))
    assert without.deleted == [("Job", name.removeprefix("Job/"))]


async def test_the_pod_of_the_template_passes_pod_security_restricted(kubectl, service):
    (deployment,) = (child for child in render(service, PLAN, SETTINGS) if child["kind"] == "Deployment")
    pod = copy.deepcopy(deployment["spec"]["template"])
    pod |= {"apiVersion": "v1", "kind": "Pod"}
    pod["metadata"] |= {"name": "probe", "namespace": service.metadata.namespace}
    accepted = kubectl.apply(pod, dry_run=True)
    assert accepted.returncode == 0, accepted.stderr
    assert "would violate" not in accepted.stderr
    del pod["spec"]["securityContext"]
    refused = kubectl.apply(pod, dry_run=True)
    assert 'violates PodSecurity "restricted:latest"' in refused.stderr, "the namespace enforces nothing"


async def test_applied_twice_nothing_changes_and_nothing_needs_to_be_applied(api, service):
    wanted = render(service, PLAN, SETTINGS)
    first = [await api.apply(child) for child in wanted]
    second = [await api.apply(child) for child in wanted]
    versions = [[child["metadata"]["resourceVersion"] for child in live] for live in (first, second)]
    assert versions[0] == versions[1]
    for child, live in zip(wanted, second, strict=True):
        assert not needs_apply(child, live), child["kind"]


async def test_a_steady_state_makes_no_writes(api, service):
    wanted = render(service, PLAN, SETTINGS)
    operator = Operator(api, service)
    assert await operator.applied(wanted) == tuple(named(without_secrets(wanted)))
    secret = await api.get("Secret", service.metadata.namespace, child_names("chat").admin_token)
    again = await operator.sync(wanted)
    assert (again.applied, again.deleted, again.failed) == ([], [], {})
    assert await api.get("Secret", service.metadata.namespace, child_names("chat").admin_token) == secret


async def test_tuning_and_scaling_write_only_the_limits_and_the_replicas(api, simple):
    operator = Operator(api, simple)
    await operator.sync(render(simple, PLAN, SETTINGS))
    before = await api.get("Deployment", simple.metadata.namespace, "chat")
    tuned = replace(PLAN, limits=LimitsInForce(Limits(48, 512), 8))
    assert await operator.applied(render(simple, tuned, SETTINGS)) == ("ConfigMap/chat-limits",)
    scaled = replace(tuned, replicas=3)
    assert await operator.applied(render(simple, scaled, SETTINGS)) == ("Deployment/chat",)
    after = await api.get("Deployment", simple.metadata.namespace, "chat")
    assert after["spec"]["replicas"] == 3
    assert after["spec"]["template"] == before["spec"]["template"]


FULL_TEMPLATE = SPECS["everything in the template"]["template"]
CLEARED = {"resources": {"limits": {"cpu": "2"}}, "nodeSelector": {"pool": "llm"}, "env": FULL_TEMPLATE["env"][1:]}


def some_template(random):
    """Some parts of the full template, some of them in a smaller form."""
    parts = random.sample(sorted(FULL_TEMPLATE), random.randint(0, len(FULL_TEMPLATE)))
    if "volumeMounts" in parts and "volumes" not in parts:
        parts.append("volumes")
    return {part: random.choice([FULL_TEMPLATE[part], CLEARED.get(part, FULL_TEMPLATE[part])]) for part in parts}


def flat(value, path=""):
    """Every leaf with its path, so that a difference shows where it is."""
    if isinstance(value, dict | list) and value:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {leaf: found for key, item in items for leaf, found in flat(item, f"{path}/{key}").items()}
    return {path: value}


async def test_a_changed_template_ends_where_a_fresh_one_begins_and_then_rests(api, make):
    stored = make(SPECS["four lines"])
    random = Random(7)

    def with_template(template):
        return InferenceService.from_dict({**stored, "spec": {**SPECS["four lines"], "template": template}})

    namespace = stored["metadata"]["namespace"]
    operator = Operator(api, with_template({}))
    for _ in range(12):
        before, after = with_template(some_template(random)), with_template(some_template(random))
        for service in (before, after):
            await operator.sync(render(service, PLAN, SETTINGS))
            assert await operator.applied(render(service, PLAN, SETTINGS)) == (), service.spec.template
        changed = await api.get("Deployment", namespace, "chat")
        await api.delete("Deployment", namespace, "chat")
        await operator.sync(render(after, PLAN, SETTINGS))
        fresh = await api.get("Deployment", namespace, "chat")
        assert flat(changed["spec"]["template"]) == flat(fresh["spec"]["template"])


@pytest.mark.parametrize(
    ("part", "value", "gone"),
    [
        ("nodeSelector", {"kubernetes.io/arch": "amd64"}, "pool"),
        ("tolerations", [], "NoExecute"),
        ("labels", {}, "seven"),
        ("annotations", {}, "example.com/a"),
        ("affinity", None, "podAntiAffinity"),
        ("env", [], "HF_TOKEN"),
        ("envFrom", [], "A_"),
        ("volumeMounts", [], "/cache"),
        ("imagePullSecrets", [], "registry"),
        ("serviceAccountName", None, "runner"),
        ("resources", {}, "'limits': {'cpu': '2'"),
    ],
)
async def test_what_a_user_takes_out_of_the_template_goes_from_the_deployment(api, make, part, value, gone):
    full = SPECS["everything in the template"]
    stored = make(full)
    operator = Operator(api, InferenceService.from_dict(stored))
    await operator.sync(render(operator.service, PLAN, SETTINGS))
    less = {**full, "template": {key: item for key, item in full["template"].items() if key != part}}
    if value:
        less["template"][part] = value
    service = InferenceService.from_dict({**stored, "spec": less})
    before = await api.get("Deployment", service.metadata.namespace, "chat")
    assert gone in str(before["spec"]["template"])
    assert await operator.applied(render(service, PLAN, SETTINGS)) == ("Deployment/chat",)
    after = await api.get("Deployment", service.metadata.namespace, "chat")
    assert gone not in str(after["spec"]["template"])
    assert await operator.applied(render(service, PLAN, SETTINGS)) == ()


async def test_a_child_that_was_changed_by_hand_is_put_right_and_fields_of_others_are_left(kubectl, api, simple):
    namespace, operator, wanted = simple.metadata.namespace, Operator(api, simple), render(simple, PLAN, SETTINGS)
    await operator.sync(wanted)
    kubectl.ok("annotate", "deployment/chat", "-n", namespace, "example.com/note=keep")
    assert await operator.applied(wanted) == ()
    kubectl.ok("set", "image", "deployment/chat", "engine=example.com/other", "-n", namespace)
    assert await operator.applied(wanted) == ("Deployment/chat",)
    live = await api.get("Deployment", namespace, "chat")
    assert live["spec"]["template"]["spec"]["containers"][0]["image"] == SETTINGS.engine_image
    assert live["metadata"]["annotations"]["example.com/note"] == "keep"


async def test_a_child_that_is_no_longer_wanted_is_deleted_and_a_strangers_is_not(kubectl, api, simple):
    namespace, operator, wanted = simple.metadata.namespace, Operator(api, simple), render(simple, PLAN, SETTINGS)
    await operator.sync(wanted)
    labels = wanted[0]["metadata"]["labels"]
    theirs = {"name": "theirs", "namespace": namespace, "labels": labels}
    kubectl.create({"apiVersion": "v1", "kind": "Service", "metadata": theirs, "spec": {"ports": [{"port": 80}]}})
    without = [child for child in wanted if child["kind"] != "PodDisruptionBudget"]
    assert (await operator.sync(without)).deleted == [("PodDisruptionBudget", "chat")]
    assert await api.get("PodDisruptionBudget", namespace, "chat") is None
    assert await api.get("Service", namespace, "theirs") is not None


async def test_children_left_from_a_service_that_was_deleted_and_made_again_are_replaced(api, simple):
    former = simple.model_copy(update={"metadata": simple.metadata.model_copy(update={"uid": "the-former-service"})})
    await Operator(api, former).sync(render(former, PLAN, SETTINGS))
    operator, wanted = Operator(api, simple), render(simple, PLAN, SETTINGS)
    changes = await operator.sync(wanted)
    assert changes.failed == {}
    assert len(changes.deleted) == len(changes.applied) == len(without_secrets(wanted))
    secret = await api.get("Secret", simple.metadata.namespace, child_names("chat").admin_token)
    for child in [*await operator.live(), secret]:
        assert [owner["uid"] for owner in child["metadata"]["ownerReferences"]] == [simple.metadata.uid], child["kind"]
    assert await operator.applied(wanted) == ()


async def test_an_object_of_someone_else_with_a_childs_name_is_not_taken_over_and_stops_no_other(kubectl, api, simple):
    namespace, wanted = simple.metadata.namespace, render(simple, PLAN, SETTINGS)
    theirs = {"name": "chat", "namespace": namespace}
    kubectl.create({"apiVersion": "v1", "kind": "Service", "metadata": theirs, "spec": {"ports": [{"port": 443}]}})
    changes = await Operator(api, simple).sync(wanted)
    assert isinstance(changes.failed.pop(("Service", "chat")), ChildConflictError)
    assert changes.failed == {}
    others = [child for child in without_secrets(wanted) if child["kind"] != "Service"]
    assert named(changes.applied) == named(others)
    assert (await api.get("Service", namespace, "chat"))["spec"]["ports"][0]["port"] == 443


async def test_every_child_is_owned_by_the_service_so_that_deleting_it_deletes_them(api, service):
    wanted = render(service, PLAN, SETTINGS)
    await Operator(api, service).sync(wanted)
    secret = await api.get("Secret", service.metadata.namespace, child_names("chat").admin_token)
    children = [*await Operator(api, service).live(), secret]
    kinds = {child["kind"] for child in wanted}
    assert {child["kind"] for child in children} == kinds >= set(CHILD_KINDS) - set(ONLY_SOME)
    for child in children:
        (owner,) = child["metadata"]["ownerReferences"]
        assert owner["uid"] == service.metadata.uid
        assert owner["controller"] is True
        assert "finalizers" not in child["metadata"]


async def test_the_service_keeps_its_address_to_the_gateway_and_back(api, simple):
    namespace, operator = simple.metadata.namespace, Operator(api, simple)
    apart = render(simple, PLAN, SETTINGS)
    behind = simple.model_copy(update={"spec": simple.spec.model_copy(update={"gateway": Gateway(enabled=True)})})
    pods = (GatewayAddress("10.1.0.1"), GatewayAddress("fd00::1"))
    through = render(behind, replace(PLAN, tenant_keys=("key",), front_pods=pods), SETTINGS)
    addresses = set()
    for _ in range(2):
        await operator.applied(apart)
        plain = await api.get("Service", namespace, "chat")
        addresses.add(plain["spec"]["clusterIP"])
        assert plain["spec"]["selector"] == pod_labels("chat")
        assert await slices_of(api, namespace) == set()
        assert await api.get("Service", namespace, "chat-engines") is None
        assert await operator.applied(apart) == ()

        await operator.applied(through)
        front = await api.get("Service", namespace, "chat")
        addresses.add(front["spec"]["clusterIP"])
        assert front["spec"]["selector"] == no_pods(behind)
        assert await slices_of(api, namespace) == {"chat-gateway-ipv4", "chat-gateway-ipv6"}
        engines = await api.get("Service", namespace, "chat-engines")
        assert engines["spec"]["clusterIP"] == "None"
        assert engines["metadata"]["labels"]["inflight.dev/service"] == "chat"
        assert await operator.applied(through) == ()
    assert len(addresses) == 1
    assert addresses.isdisjoint({"", "None"})


async def slices_of(api, namespace):
    found = await api.list(Selection("EndpointSlice", namespace, "inflight.dev/service=chat"))
    return {one["metadata"]["name"] for one in found}


async def test_an_alias_of_an_earlier_release_gets_an_address(api, simple):
    namespace, operator = simple.metadata.namespace, Operator(api, simple)
    behind = simple.model_copy(update={"spec": simple.spec.model_copy(update={"gateway": Gateway(enabled=True)})})
    children = render(behind, replace(PLAN, front_pods=(GatewayAddress("10.1.0.1"),)), SETTINGS)
    (front,) = (one for one in children if (one["kind"], one["metadata"]["name"]) == ("Service", "chat"))
    alias = {"type": "ExternalName", "externalName": SETTINGS.gateway_service, "ports": front["spec"]["ports"]}
    await api.apply({**front, "spec": alias})
    await operator.applied(children)
    live = (await api.get("Service", namespace, "chat"))["spec"]
    assert live["clusterIP"] not in ("", "None")
    assert (live["type"], live.get("externalName")) == ("ClusterIP", None)
    assert await operator.applied(children) == ()


async def test_a_secret_of_someone_else_with_the_tokens_name_is_not_taken_over(kubectl, api, simple):
    namespace, name = simple.metadata.namespace, child_names("chat").admin_token
    theirs = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}}
    kubectl.create({**theirs, "data": {"token": "dGhlaXJz"}})
    changes = await Operator(api, simple).sync(render(simple, PLAN, SETTINGS))
    assert [kind for kind, _ in changes.failed] == ["Secret"]
    assert (await api.get("Secret", namespace, name))["data"] == {"token": "dGhlaXJz"}


async def test_a_pod_monitor_is_accepted_where_the_api_exists(kubectl, api, simple):
    await apis_become(api, frozenset())
    kubectl.create(POD_MONITOR_CRD)
    try:
        established(kubectl, "podmonitors.monitoring.coreos.com")
        available = await apis_become(api, {POD_MONITOR_API})
        wanted = render(simple, PLAN, replace(SETTINGS, available_apis=available))
        assert "PodMonitor/chat" in await Operator(api, simple).applied(wanted)
        live = await api.get("PodMonitor", simple.metadata.namespace, "chat")
        assert not needs_apply(wanted[-1], live)
    finally:
        kubectl.ok("delete", "crd", "podmonitors.monitoring.coreos.com")


POD_MONITOR_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "podmonitors.monitoring.coreos.com",
        "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
    },
    "spec": {
        "group": "monitoring.coreos.com",
        "scope": "Namespaced",
        "names": {"kind": "PodMonitor", "plural": "podmonitors"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
