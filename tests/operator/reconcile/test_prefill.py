"""A service whose prompts other engines compute, in rounds: of the service, and of the second InferenceService."""

import copy
from base64 import b64encode

import pytest

from inflight_base.kube.errors import KubeApiError
from inflight_base.manifest.keys import ServiceKey
from tests.operator.fakes import KEY, delete

PREFILL = ServiceKey("team", "chat-prefill")
TOKEN = b64encode(b"token of service-uid").decode()
APART = {
    "gateway": {"enabled": True},
    "engine": {"kvCache": {"swap": "4Gi"}},
    "disaggregation": {"mode": "Auto", "prefill": {"maxReplicas": 3}},
}


@pytest.fixture
def world(world):
    world.behind_gateway()
    world.service(spec=APART)
    return world


def live(world):
    return world.cache.child(KEY, "InferenceService", "chat-prefill")


def applied(world, kind="InferenceService"):
    return [call[2] for call in world.api.of("apply") if call[1] == kind]


def stored(world, status=None, spec=None, **metadata):
    """Gives the second InferenceService what the API server gives it, and what else a test asks for."""
    body = copy.deepcopy(live(world))
    body["metadata"] |= {"uid": "prefill-uid", "generation": 1, **metadata}
    body["spec"] |= spec or {}
    world.cache.put("InferenceService", body if status is None else {**body, "status": status})


async def round_of_prefill(world):
    world.api.calls.clear()
    return await world.reconciler.reconcile(PREFILL)


def children(world):
    return {(one["kind"], one["metadata"]["name"]) for one in world.cache.children(PREFILL)}


def secret(world):
    (found,) = applied(world, "Secret")
    return found["data"]


async def test_it_is_made_once_follows_the_service_and_goes_with_the_mode(world):
    await world.round()
    assert live(world)["spec"]["scaling"]["maxReplicas"] == 3
    assert live(world)["metadata"]["ownerReferences"][0]["uid"] == "service-uid"
    stored(world)
    await world.round()
    assert world.api.of("apply") == []
    changed = {**APART, "engine": {"kvCache": {"swap": "8Gi"}}}
    world.service(spec=changed, generation=2)
    await world.round()
    assert [one["spec"]["engine"]["kvCache"]["swap"] for one in applied(world)] == ["8Gi"]
    stored(world)
    world.service(spec={**changed, "disaggregation": {"mode": "Off"}}, generation=3)
    await world.round()
    assert [call[1:] for call in world.api.of("delete")] == [("InferenceService", "chat-prefill")]
    assert "PrefillReady" not in {one["type"] for one in world.status["conditions"]}


async def test_what_a_user_changes_in_it_is_changed_back(world):
    await world.round()
    stored(world, spec={"gateway": {"enabled": True}}, generation=2)
    await world.round()
    assert [one["spec"]["gateway"] for one in applied(world)] == [{"enabled": False}]


async def test_one_that_is_deleted_is_made_again_and_one_of_somebody_else_is_left_alone(world):
    await world.round()
    stored(world)
    delete(world.cache, "InferenceService", live(world))
    await world.round()
    assert len(applied(world)) == 1
    stored(world, ownerReferences=[])
    assert not await world.round()
    assert applied(world) == []
    assert "InferenceService chat-prefill exists" in world.condition("Progressing")["message"]


async def test_the_condition_has_its_ready_replicas_and_what_happens_without_any(world):
    await world.round()
    found = world.condition("PrefillReady")
    assert (found["status"], found["reason"]) == ("False", "NoPrefill")
    assert found["message"] == "no replica of chat-prefill is ready: prompts are computed where they are answered"
    stored(world, status={"replicas": 2, "readyReplicas": 1})
    await world.round()
    found = world.condition("PrefillReady")
    assert (found["status"], found["reason"]) == ("True", "Prefilling")
    assert found["message"] == "1 of 2 replicas of chat-prefill take prompts to compute"


async def test_one_that_the_api_server_refuses_does_not_stop_the_service_and_is_reported(world):
    world.api.refuse["InferenceService"] = KubeApiError("PATCH", 403, "inferenceservices is forbidden")
    assert not await world.round()
    assert "inferenceservices is forbidden" in world.condition("Progressing")["message"]
    assert world.cache.child(KEY, "Deployment", "chat") is not None


async def test_a_spec_that_cannot_be_read_completely_leaves_it_as_it_is(world):
    await world.round()
    stored(world)
    for mode in ("Auto", "Unknown"):
        newer = {**APART, "disaggregation": {"mode": mode, "decode": {}}, "engine": {"kvCache": {"swap": "9Gi"}}}
        world.service(spec=newer, generation=2)
        await world.round()
        assert (applied(world), world.api.of("delete")) == ([], [])


@pytest.mark.parametrize(("auth", "key"), [(None, "tenant-key-progress"), ({"apiKeysSecret": "keys"}, "tenant-key")])
async def test_it_has_the_tokens_and_keys_of_the_service_and_no_address(world, auth, key):
    world.service(spec={**APART, "gateway": {"enabled": True, **({"auth": auth} if auth else {})}}, generation=2)
    await world.round()
    ours = secret(world)
    stored(world)
    await round_of_prefill(world)
    assert secret(world) == ours
    assert ours["token"] == TOKEN
    assert key in ours
    assert {name for kind, name in children(world) if kind in ("Service", "EndpointSlice")} == {"chat-prefill-engines"}
    deployment = world.cache.child(PREFILL, "Deployment", "chat-prefill")
    command = deployment["spec"]["template"]["spec"]["containers"][0]["command"]
    assert "--tenant-key-file=/etc/inflight/admin/tenant-key" in command
    status = world.cache.service(PREFILL)["status"]
    assert "url" not in status
    assert "GatewayReady" not in {one["type"] for one in status["conditions"]}
    await round_of_prefill(world)
    assert world.api.of("apply") == []


async def test_keys_that_the_service_begins_to_ask_for_are_asked_for_by_its_prefill_engines(world):
    await world.round()
    stored(world)
    await round_of_prefill(world)
    assert "tenant-key-progress" in secret(world)
    keyed = {**APART, "gateway": {"enabled": True, "auth": {"apiKeysSecret": "keys"}}}
    world.service(spec=keyed, generation=2)
    await round_of_prefill(world)
    assert "tenant-key-progress" not in secret(world)


def owner(**more):
    return {
        "apiVersion": "inflight.dev/v1alpha1",
        "kind": "InferenceService",
        "name": "chat",
        "uid": "service-uid",
        "controller": True,
        **more,
    }


def forged(name="chat-prefill", namespace="team", reference=None):
    """An InferenceService of somebody who may create them, as the operator would make it."""
    references = [owner() if reference is None else reference]
    return {
        "apiVersion": "inflight.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": "prefill-uid",
            "generation": 1,
            "labels": {"inflight.dev/service": "chat"},
            "ownerReferences": references,
        },
        "spec": {"model": {"source": "builtin://smollm2"}, "accelerator": {"count": 0}},
    }


@pytest.mark.parametrize(
    ("body", "parent"),
    [
        (forged(reference=owner(uid="another")), APART),
        (forged(reference=owner(name="other")), APART),
        (forged(reference=owner(controller=False)), APART),
        (forged(reference=owner(kind="Deployment")), APART),
        (forged(reference=owner(apiVersion="example.com/v1")), APART),
        (forged(name="mine"), APART),
        (forged(name="mine-prefill"), APART),
        (forged(namespace="theirs"), APART),
        (forged(), {**APART, "disaggregation": {"mode": "Off"}}),
        (forged(), {"gateway": {"enabled": True}}),
    ],
    ids=lambda one: one["metadata"]["name"] if "metadata" in one else "service",
)
async def test_an_owner_that_it_does_not_have_makes_it_an_ordinary_service(world, body, parent):
    world.service(spec=parent, generation=2)
    world.cache.put("InferenceService", body)
    key = ServiceKey(body["metadata"]["namespace"], body["metadata"]["name"])
    world.api.calls.clear()
    await world.reconciler.reconcile(key)
    assert secret(world)["token"] != TOKEN
    services = {one["metadata"]["name"]: one["metadata"]["labels"] for one in applied(world, "Service")}
    assert services.keys() == {key.name}
    assert "inflight.dev/prefill-of" not in services[key.name]
