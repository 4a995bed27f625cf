"""The cache of the cluster: the newest version of each object wins, whatever arrives when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_operator.observe import cache as cache_module
from inflight_operator.observe.cache import ClusterCache
from tests.operator.fakes import KEY, service_body
from tests.operator.observe.cluster_history import History, manifest


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
    listing = cache.listing(kind, namespace, str(version))
    listing.add(bodies)
    listing.end()
    return listing


def test_a_changed_spec_asks_for_a_look_and_a_changed_status_does_not():
    cache = ClusterCache()
    assert cache.put("InferenceService", service(1)) == KEY
    assert cache.put("InferenceService", service(2, status={"replicas": 1})) is None
    assert cache.service(KEY)["status"] == {"replicas": 1}
    assert cache.put("InferenceService", service(3, generation=2)) == KEY
    assert cache.put("InferenceService", service(4, generation=2, uid="another")) == KEY


def test_a_pod_asks_for_a_look_when_what_we_see_of_it_changed():
    cache = ClusterCache()
    assert cache.put("Pod", pod("chat-1", 1)) == KEY
    assert cache.put("Pod", pod("chat-1", 2)) is None
    assert cache.put("Pod", pod("chat-1", 3, ready=False)) == KEY
    assert [one.ready for one in cache.pods(KEY)] == [False]
    assert cache.remove("Pod", pod("chat-1", 4)) == KEY
    assert cache.pods(KEY) == []


def test_a_child_asks_for_a_look_once_for_each_version():
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
    cache.remove("Service", child("Service", 3))
    assert len(cache.children(KEY)) == 1


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


@pytest.mark.parametrize("version", ["9", "", "not a number"])
def test_the_end_of_an_old_object_does_not_hide_a_new_one_of_its_name(version):
    cache = ClusterCache()
    cache.put("Deployment", child("Deployment", 10, uid="new"))
    assert cache.remove("Deployment", child("Deployment", version, uid="old")) is None
    assert cache.child(KEY, "Deployment", "chat")["metadata"]["uid"] == "new"


def test_a_version_that_cannot_be_read_is_taken_as_it_comes():
    cache = ClusterCache()
    cache.put("Deployment", child("Deployment", 10, spec={"replicas": 1}))
    assert cache.put("Deployment", child("Deployment", "x", spec={"replicas": 2})) == KEY
    assert cache.child(KEY, "Deployment", "chat")["spec"] == {"replicas": 2}
    take_list(cache, "Deployment", "y", [])
    assert cache.children(KEY) == []


def test_a_deleted_object_is_not_brought_back_by_a_late_event_nor_by_an_older_list():
    cache = ClusterCache()
    cache.put("Pod", pod("chat-1", 1))
    cache.remove("Pod", pod("chat-1", 5))
    cache.put("Pod", pod("chat-1", 4))
    take_list(cache, "Pod", 4, [pod("chat-1", 4)])
    assert cache.pods(KEY) == []
    take_list(cache, "Pod", 6, [])
    cache.put("Pod", pod("chat-1", 3))  # no tombstone any more: the list itself is newer
    assert cache.pods(KEY) == []


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


def test_what_events_told_during_a_list_stays():
    cache = ClusterCache()
    cache.put("Pod", pod("old", 1))
    listing = cache.listing("Pod", None, "10")
    cache.put("Pod", pod("new", 11))
    cache.remove("Pod", pod("gone", 12))
    listing.add([pod("old", 1), pod("gone", 2)])
    listing.end()
    assert [one.name for one in cache.pods(KEY)] == ["new", "old"]


def test_an_older_list_is_ignored():
    cache = ClusterCache()
    take_list(cache, "Pod", 10, [pod("chat-2", 9)])
    assert take_list(cache, "Pod", 5, [pod("chat-1", 4)]).outdated
    assert [one.name for one in cache.pods(KEY)] == ["chat-2"]


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


def test_a_slice_asks_for_a_look_only_when_the_ready_pods_changed():
    cache = ClusterCache()
    cache.put("EndpointSlice", endpoint_slice("a", 1, "one"))
    assert cache.put("EndpointSlice", endpoint_slice("a", 2, "one", not_ready=("two",))) is None
    assert cache.put("EndpointSlice", endpoint_slice("b", 3, "one")) is None  # moves between slices
    assert cache.remove("EndpointSlice", endpoint_slice("a", 4)) is None
    assert cache.remove("EndpointSlice", endpoint_slice("b", 5)) == KEY
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
    cache.forget_kind("PodMonitor")
    assert cache.children(KEY) == []
    assert cache.put("PodMonitor", child("PodMonitor", 8)) == KEY


def test_an_object_that_changes_its_service_leaves_the_old_one():
    cache = ClusterCache()
    cache.put("Service", child("Service", 1))
    assert cache.put("Service", child("Service", 2, service="other")) == ("team", "other")
    assert cache.children(KEY) == []


def test_tombstones_are_bounded_and_go_with_a_list(monkeypatch):
    monkeypatch.setattr(cache_module, "MOST_TOMBSTONES", 5)
    cache = ClusterCache()
    for version in range(1, 100):
        cache.remove("Pod", pod(f"chat-{version}", version))
    assert len(cache._tombstones["Pod"]) == 5
    take_list(cache, "Pod", 98, [])
    assert list(cache._tombstones["Pod"].values()) == [99]


@st.composite
def deliveries(draw):
    """A history of three names, and what of it reaches the cache in which order. Either every event is delivered, or a
    list of the end is, at any point. Answers to writes are the same objects as events, so they need no case of their
    own."""
    history = History(draw(st.sampled_from(["InferenceService", "Deployment", "Pod"])))
    lists = []
    for what in draw(st.lists(st.sampled_from(["write", "write", "delete", "list"]), max_size=25)):
        if what == "list":
            lists.append(history.listed())
        else:
            getattr(history, what)(draw(st.sampled_from("abc")))
    events = history.events
    if draw(st.booleans()):
        events = [one for one in events if draw(st.booleans())]
        lists.append(history.listed())
    again = [one for one in events if draw(st.booleans())]
    return history, draw(st.permutations([*events, *again, *lists]))


@given(deliveries())
def test_whatever_arrives_late_twice_or_out_of_order_the_cache_ends_at_the_truth(case):
    history, order = case
    cache = ClusterCache()
    for what, *rest in order:
        if what == "LIST":
            take_list(cache, history.kind, *rest)
        elif what == "DELETED":
            cache.remove(history.kind, *rest)
        else:
            cache.put(history.kind, *rest)
    held = {name: (one.uid, one.version) for (_, name), one in cache._held[history.kind].items()}
    assert held == {
        name: (one["metadata"]["uid"], int(one["metadata"]["resourceVersion"])) for name, one in history.now.items()
    }
    if history.kind == "Pod":
        assert [one.name for one in cache.pods(KEY)] == sorted(history.now)
    elif history.kind == "Deployment":
        assert {one["metadata"]["name"] for one in cache.children(KEY)} == set(history.now)


@given(deliveries(), st.integers(0, 24), st.integers(0, 24))
def test_pages_of_a_list_may_have_events_between_them(case, begun, ended):
    history, order = case
    events = [one for one in order if one[0] != "LIST"]
    begun, ended = sorted((min(begun, len(events)), min(ended, len(events))))
    cache, listing = ClusterCache(), None
    for position, (what, body) in enumerate([*events, ("END", None)]):
        if position == begun:
            listing = cache.listing(history.kind, None, str(history.version))
            listing.add(list(history.now.values())[:1])
        if position == ended:
            listing.add(list(history.now.values())[1:])
            listing.end()
        if what == "DELETED":
            cache.remove(history.kind, body)
        elif what != "END":
            cache.put(history.kind, body)
    assert {name for _, name in cache._held[history.kind]} == set(history.now)
