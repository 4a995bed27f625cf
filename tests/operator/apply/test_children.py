"""sync_children on a recording API: the calls, their order, and calls that are never made."""

import asyncio

import pytest

from inflight_base.kube.errors import KubeApiError
from inflight_operator.apply import children
from inflight_operator.apply.children import ChildConflictError, ChildrenState


async def sync_children(api, wanted, live, state=None, now=0.0, **more):
    return await children.sync_children(api, wanted, live, state or ChildrenState(), lambda: now, **more)


def names(changes):
    return [f"{child['kind']}/{child['metadata']['name']}" for child in changes.applied]


def owner_reference(uid, name="chat"):
    return {"kind": "InferenceService", "name": name, "uid": uid, "controller": True}


def manifest(name, owner="me", value=1, kind="ConfigMap"):
    return {
        "kind": kind,
        "metadata": {"name": name, "namespace": "team", "ownerReferences": [owner_reference(owner)]},
        "data": {"value": value},
    }


def stored(child):
    owner = child["metadata"]["ownerReferences"][0]["uid"]
    fields = {
        "f:metadata": {"f:ownerReferences": {f'k:{{"uid":"{owner}"}}': {}}},
        "f:data": {"f:value": {}},
    }
    entry = {"manager": "inflight-operator", "operation": "Apply", "fieldsV1": fields}
    return {**child, "metadata": {**child["metadata"], "managedFields": [entry]}}


class RecordingApi:
    def __init__(self, *others):
        self.others = {(child["kind"], child["metadata"]["name"]): child for child in others}
        self.calls = []
        self.refused = set()

    async def get(self, kind, namespace, name):
        self.calls.append(("get", namespace, name))
        return self.others.get((kind, name))

    async def apply(self, child, *, force=True):
        self.calls.append(("apply", child["metadata"]["name"], child["data"]["value"]))
        if child["kind"] in self.refused:
            raise KubeApiError("PATCH", 403, f"{child['kind']} is forbidden")
        return stored(child)

    async def delete(self, kind, namespace, name, uid=None):
        self.calls.append(("delete", kind, namespace, name, *([uid] if uid else [])))


async def test_a_steady_state_makes_no_calls_at_all():
    api = RecordingApi()
    wanted = [manifest("a"), manifest("b")]
    changes = await sync_children(api, wanted, [stored(child) for child in wanted])
    assert (api.calls, changes.applied, changes.deleted) == ([], [], [])


async def test_missing_children_are_applied_in_the_given_order_and_changed_ones_again():
    api = RecordingApi()
    changes = await sync_children(api, [manifest("b"), manifest("a", value=2)], [stored(manifest("a"))])
    assert api.calls == [("get", "team", "b"), ("apply", "b", 1), ("apply", "a", 2)]
    assert names(changes) == ["ConfigMap/b", "ConfigMap/a"]


async def test_children_that_are_not_wanted_are_deleted_last_and_only_the_services_own():
    api = RecordingApi()
    live = [stored(manifest("old")), stored(manifest("theirs", owner="someone"))]
    changes = await sync_children(api, [manifest("new")], live)
    assert api.calls == [("get", "team", "new"), ("apply", "new", 1), ("delete", "ConfigMap", "team", "old")]
    assert changes.deleted == [("ConfigMap", "old")]


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("owners", [[], [owner_reference("u", name="other")]])
async def test_an_object_of_someone_else_is_left_alone_and_named(listed, owners):
    foreign = manifest("chat", kind="Service")
    foreign["metadata"]["ownerReferences"] = owners
    api = RecordingApi(foreign)
    changes = await sync_children(api, [manifest("chat", kind="Service")], [foreign] if listed else [])
    (error,) = changes.failed.values()
    assert isinstance(error, ChildConflictError)
    assert "Service chat exists in namespace team and does not belong" in str(error)
    assert [call for call in api.calls if call[0] != "get"] == []


async def test_a_child_of_a_service_that_was_deleted_and_made_again_is_replaced_and_no_other_object_is():
    left_over = manifest("chat", owner="the-old-uid")
    left_over["metadata"]["uid"] = "this-one-only"
    api = RecordingApi(left_over)
    changes = await sync_children(api, [manifest("chat", owner="the-new-uid")], [])
    assert api.calls[1:] == [("delete", "ConfigMap", "team", "chat", "this-one-only"), ("apply", "chat", 1)]
    assert (changes.deleted, names(changes)) == ([("ConfigMap", "chat")], ["ConfigMap/chat"])


async def test_children_that_pods_wait_for_are_written_together_and_the_deployment_after_all_of_them():
    class SlowApi(RecordingApi):
        async def apply(self, child, *, force=True):
            self.calls.append(("begin", child["kind"]))
            await asyncio.sleep(0)
            self.calls.append(("end", child["kind"]))
            return stored(child)

    api = SlowApi()
    kinds = ("Secret", "ConfigMap", "NetworkPolicy", "Deployment", "Service")
    await sync_children(api, [manifest("chat", kind=kind) for kind in kinds], [])
    writes = [call for call in api.calls if call[0] != "get"]
    together = {"Secret", "ConfigMap", "NetworkPolicy"}
    assert ({kind for _, kind in writes[:3]}, {kind for _, kind in writes[3:6]}) == (together, together)
    assert [kind for _, kind in writes[6:]] == ["Deployment", "Deployment", "Service", "Service"]
