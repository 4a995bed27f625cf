"""The cache of the cluster: the newest version of each object wins, whatever arrives when."""

import pytest

from inflight_base.kube.changes import Changes, HistoryError
from inflight_base.manifest.keys import ObjectKey, ServiceKey
from inflight_operator.observe.cache import ClusterCache
from tests.operator.fakes import KEY, delete, service_body
from tests.operator.observe.cluster_history import manifest


def child(kind, version, *, name="chat", uid="u", **more):
    return manifest(kind, name, uid, version, **more)


def pod(name, version, *, uid=None, ready=True, **more):
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]}
    return manifest("Pod", name, uid or f"uid-{name}", version, status=status, **more)


def service(version, **more):
    body = service_body(**more)
    return {**body, "metadata": {**body["metadata"], "resourceVersion": str(version)}}


def endpoint_slice(name, version, *uids, not_ready=(), of="chat"):
    endpoints = [
        {
            "addresses": ["10.0.0.1"],
            "targetRef": {"kind": "Pod", "uid": uid},
            "conditions": {"ready": uid not in not_ready},
        }
        for uid in (*uids, *not_ready)
    ]
    body = manifest("EndpointSlice", name, f"uid-{name}", version, endpoints=endpoints)
    body["metadata"]["labels"]["kubernetes.io/service-name"] = of
    return body


def take_list(cache, kind, version, bodies, namespace=None):
    """A list as a reflector reports it: what it knew and did not find is deleted."""
    found = {ObjectKey(one["metadata"]["namespace"], one["metadata"]["name"]): one for one in bodies}
    gone = {key: None for key in cache._entries[kind] if namespace in (None, key.namespace) and key not in found}
    return cache.take(kind, namespace, Changes({**gone, **found}, str(version), found.keys()))


def test_a_changed_spec_requests_a_round_and_a_changed_status_does_not():
    cache = ClusterCache()
    assert cache.put("InferenceService", service(1)) == KEY
    assert cache.put("InferenceService", service(2, status={"replicas": 1})) is None
    assert cache.service(KEY)["status"] == {"replicas": 1}
    assert cache.put("InferenceService", service(3, generation=2)) == KEY
    assert cache.put("InferenceService", service(4, generation=2, uid="another")) == KEY


def test_a_pod_requests_a_round_when_what_we_see_of_it_changed():
    cache = ClusterCache()
    assert cache.put("Pod", pod("chat-1", 1)) == KEY
    assert cache.put("Pod", pod("chat-1", 2)) is None
    assert cache.put("Pod", pod("chat-1", 3, ready=False)) == KEY
    assert [one.ready for one in cache.pods(KEY)] == [False]
    assert delete(cache, "Pod", pod("chat-1", 4)) == KEY
    assert cache.pods(KEY) == []


def test_a_child_requests_a_round_once_for_each_version():
    cache = ClusterCache()
    cache.put("Deployment", child("Deployment", 5))  # as apply returned it
    assert cache.put("Deployment", child("Deployment", 5)) is None
    assert cache.put("Deployment", child("Deployment", 6)) == KEY


def test_objects_without_the_label_are_nobody_s():
    assert ClusterCache().put("Pod", {"metadata": {"name": "other", "namespace": "team"}}) is None


def test_children_are_found_by_kind_and_name():
    cache = ClusterCache()
    cache.put("Service", child("Service", 1))
    cache.put("Deployment", child("Deployment", 2))
    assert cache.child(KEY, "Deployment", "chat")["kind"] == "Deployment"
    assert cache.child(KEY, "ConfigMap", "chat") is None
    assert len(cache.children(KEY)) == 2
    delete(cache, "Service", child("Service", 3))
    assert len(cache.children(KEY)) == 1


def prefill_of(version, name="chat", **metadata):
    body = service(version)
    owned = {"labels": {"inflight.dev/service": name} if name else {}, "managedFields": [{"manager": "someone"}]}
    return {**body, "metadata": {**body["metadata"], "name": "chat-prefill", "uid": "p", **owned, **metadata}}


def test_a_service_is_a_child_of_the_one_that_its_label_names_and_needs_its_rounds_itself():
    cache, key = ClusterCache(), ServiceKey(KEY.namespace, "chat-prefill")
    cache.put("InferenceService", service(1))
    assert cache.put("InferenceService", prefill_of(2)) == key
    assert set(cache.services()) == {KEY, key}
    assert cache.child(KEY, "InferenceService", "chat-prefill") is cache.service(key)
    assert cache.children(key) == []
    cache.put("InferenceService", prefill_of(3, generation=2))
    assert cache.child(KEY, "InferenceService", "chat-prefill")["metadata"]["generation"] == 2
    cache.put("InferenceService", prefill_of(4, name=""))
    assert cache.children(KEY) == []
    cache.put("InferenceService", prefill_of(5))
    assert delete(cache, "InferenceService", prefill_of(6)) == key
    assert (cache.children(KEY), cache.services()) == ([], [KEY])


def test_what_the_operator_owns_of_a_service_is_kept_for_a_child_only():
    cache, key = ClusterCache(), ServiceKey(KEY.namespace, "chat-prefill")
    ours = [{"manager": "inflight-operator", "operation": "Apply", "fieldsV1": {"f:spec": {}}}]
    cache.put("InferenceService", prefill_of(1, managedFields=[*ours, {"manager": "someone"}]))
    assert [one["manager"] for one in cache.service(key)["metadata"]["managedFields"]] == ["inflight-operator"]
    cache.put("InferenceService", prefill_of(2, name="", managedFields=ours))
    assert "managedFields" not in cache.service(key)["metadata"]


def test_a_late_event_does_not_undo_a_written_status():
    cache = ClusterCache()
    cache.put("InferenceService", service(1))
    cache.put("InferenceService", service(7, status={"replicas": 2}))  # the answer to the write
    cache.put("InferenceService", service(4, status={"replicas": 1}))
    assert cache.service(KEY)["status"] == {"replicas": 2}


def test_a_late_event_does_not_undo_an_applied_child():
    cache = ClusterCache()
    cache.put("Deployment", child("Deployment", 9, spec={"replicas": 3}))
    assert cache.put("Deployment", child("Deployment", 8, spec={"replicas": 2})) is None
    assert cache.child(KEY, "Deployment", "chat")["spec"] == {"replicas": 3}


def test_the_end_of_an_old_object_does_not_hide_a_new_one_of_its_name():
    cache = ClusterCache()
    cache.put("Deployment", child("Deployment", 10, uid="new"))  # the answer to a write
    assert delete(cache, "Deployment", child("Deployment", 9, uid="old")) is None
    assert cache.child(KEY, "Deployment", "chat")["metadata"]["uid"] == "new"


def test_a_version_that_cannot_be_read_is_taken_as_it_comes():
    cache = ClusterCache()
    cache.put("Deployment", child("Deployment", 10, spec={"replicas": 1}))
    assert cache.put("Deployment", child("Deployment", "x", spec={"replicas": 2})) == KEY
    assert cache.child(KEY, "Deployment", "chat")["spec"] == {"replicas": 2}
    take_list(cache, "Deployment", "y", [])
    assert cache.children(KEY) == []


def test_a_deleted_object_is_not_brought_back_by_a_late_answer_to_a_write():
    cache = ClusterCache()
    cache.put("Pod", pod("chat-1", 1))
    delete(cache, "Pod", pod("chat-1", 5))
    assert cache.put("Pod", pod("chat-1", 4)) is None
    assert cache.pods(KEY) == []
    assert cache.put("Pod", pod("chat-1", 6)) == KEY


def test_a_copy_of_a_pod_without_its_owner_is_no_replica():
    cache = ClusterCache()
    copied = pod("debug", 1)
    del copied["metadata"]["ownerReferences"]
    assert cache.put("Pod", copied) is None
    foreign = pod("foreign", 2)
    foreign["metadata"]["ownerReferences"][0]["name"] = "other-abc"
    assert cache.put("Pod", foreign) is None
    uncontrolled = pod("uncontrolled", 3)
    uncontrolled["metadata"]["ownerReferences"][0]["controller"] = False
    assert cache.put("Pod", uncontrolled) is None
    assert cache.pods(KEY) == []


def test_a_replica_that_loses_its_owner_is_no_replica_any_more():
    cache = ClusterCache()
    cache.put("Pod", pod("chat-1", 1))
    released = pod("chat-1", 2)
    del released["metadata"]["ownerReferences"]
    assert cache.put("Pod", released) == KEY
    assert cache.pods(KEY) == []


def test_a_labelled_object_of_another_owner_stays_visible_so_that_a_conflict_is_reported():
    cache = ClusterCache()
    foreign = child("Service", 1)
    foreign["metadata"]["ownerReferences"] = [{"kind": "Other", "name": "x", "uid": "y", "controller": True}]
    cache.put("Service", foreign)
    assert cache.children(KEY)[0]["metadata"]["ownerReferences"][0]["uid"] == "y"


def test_a_list_takes_out_what_was_deleted_while_the_watch_was_cut():
    cache = ClusterCache()
    cache.put("Pod", pod("chat-1", 1))
    cache.put("Deployment", child("Deployment", 2))
    cache.put("InferenceService", service(3))
    take_list(cache, "Pod", 10, [pod("chat-2", 9)])
    assert [one.name for one in cache.pods(KEY)] == ["chat-2"]
    assert cache.child(KEY, "Deployment", "chat") is not None  # another kind's list says nothing about it
    take_list(cache, "InferenceService", 11, [])
    assert cache.services() == []


def test_a_list_of_one_namespace_says_nothing_about_another():
    cache = ClusterCache()
    cache.put("InferenceService", service(1))
    take_list(cache, "InferenceService", 5, [], namespace="elsewhere")
    assert cache.services() == [KEY]
    take_list(cache, "InferenceService", 5, [], namespace="team")
    assert cache.services() == []


def test_an_answer_to_a_write_that_is_newer_than_the_list_stays():
    cache = ClusterCache()
    cache.put("Deployment", child("Deployment", 11))
    take_list(cache, "Deployment", 10, [])
    assert len(cache.children(KEY)) == 1
    take_list(cache, "Deployment", 12, [])
    assert cache.children(KEY) == []


def test_a_history_that_goes_back_is_an_error():
    cache = ClusterCache()
    cache.take("Pod", None, Changes({ObjectKey("team", "chat-2"): pod("chat-2", 9)}, "9"))
    with pytest.raises(HistoryError, match="older than what came before: 8 after 9"):
        take_list(cache, "Pod", 8, [pod("chat-1", 4)])
    assert [one.name for one in cache.pods(KEY)] == ["chat-2"]


def test_a_history_that_goes_back_is_an_error_of_a_list_of_several_pages_too():
    cache = ClusterCache()
    cache.take("Pod", None, Changes({ObjectKey("team", "chat-2"): pod("chat-2", 9)}, "9"))
    first = ObjectKey("team", "chat-1")
    cache.take("Pod", None, Changes({first: pod("chat-1", 4)}, "8"))
    with pytest.raises(HistoryError, match="older than what came before: 8 after 9"):
        cache.take("Pod", None, Changes({}, "8", {first}))


def test_endpoints_are_the_ready_pods_of_the_service_s_own_slices():
    cache = ClusterCache()
    assert cache.put("EndpointSlice", endpoint_slice("a", 1, "one", not_ready=("two",))) == KEY
    assert cache.put("EndpointSlice", endpoint_slice("b", 2, "three")) == KEY
    assert cache.put("EndpointSlice", endpoint_slice("c", 3, "four", of="another-service")) is None
    assert cache.endpoints(KEY) == {"one", "three"}
    assert cache.children(KEY) == []


def test_the_slices_of_a_service_behind_the_gateway_are_those_of_its_engines():
    cache = ClusterCache()
    assert cache.put("EndpointSlice", endpoint_slice("a", 1, "one", of="chat-engines")) == KEY
    assert cache.endpoints(KEY) == {"one"}


def test_a_slice_requests_a_round_only_when_the_ready_pods_changed():
    cache = ClusterCache()
    cache.put("EndpointSlice", endpoint_slice("a", 1, "one"))
    assert cache.put("EndpointSlice", endpoint_slice("a", 2, "one", not_ready=("two",))) is None
    assert cache.put("EndpointSlice", endpoint_slice("b", 3, "one")) is None  # moves between slices
    assert delete(cache, "EndpointSlice", endpoint_slice("a", 4)) is None
    assert delete(cache, "EndpointSlice", endpoint_slice("b", 5)) == KEY
    assert cache.endpoints(KEY) == frozenset()


def test_a_slice_without_endpoints_or_with_other_targets_has_no_ready_pods():
    cache = ClusterCache()
    body = endpoint_slice("a", 1)
    body["endpoints"] = None
    cache.put("EndpointSlice", body)
    cache.put("EndpointSlice", {**endpoint_slice("b", 2), "endpoints": [{"addresses": ["10.0.0.1"]}]})
    assert cache.endpoints(KEY) == frozenset()


def test_managed_fields_are_kept_only_where_they_are_read():
    fields = [{"manager": name, "operation": "Apply", "fieldsV1": {}} for name in ("inflight-operator", "other")]
    cache = ClusterCache()
    for kind, body in (("InferenceService", service(1)), ("Deployment", child("Deployment", 1))):
        body["metadata"]["managedFields"] = fields
        cache.put(kind, body)
    assert "managedFields" not in cache.service(KEY)["metadata"]
    kept = cache.child(KEY, "Deployment", "chat")["metadata"]["managedFields"]
    assert [one["manager"] for one in kept] == ["inflight-operator"]


def test_a_kind_that_is_gone_is_forgotten_and_may_come_back():
    cache = ClusterCache()
    take_list(cache, "PodMonitor", 10, [child("PodMonitor", 9)])
    take_list(cache, "PodMonitor", "", [])
    assert cache.children(KEY) == []
    assert take_list(cache, "PodMonitor", 12, [child("PodMonitor", 11)]) == {KEY}


def test_an_object_that_changes_its_service_leaves_the_old_one():
    cache = ClusterCache()
    cache.put("Service", child("Service", 1))
    assert cache.put("Service", child("Service", 2, service="other")) == ("team", "other")
    assert cache.children(KEY) == []


def test_services_of_another_class_do_not_exist_and_one_that_names_none_is_of_the_default_class():
    ours, second = ClusterCache(), ClusterCache("second")
    for cache, kept, left in ((ours, None, "second"), (second, "second", "inflight")):
        named = {} if kept is None else {"className": kept}
        assert cache.put("InferenceService", service(1, spec=named)) == KEY
        assert (cache.services(), cache.count()) == ([KEY], 1)
        assert cache.put("InferenceService", service(2, spec={"className": left})) == KEY  # a round forgets it
        assert (cache.services(), cache.service(KEY)) == ([], None)
        assert cache.put("InferenceService", service(3, spec={"className": left}, generation=2)) is None
