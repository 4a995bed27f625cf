"""The cache of the cluster: which events ask for a look, and lists that overtake events."""

from inflight_operator.observe.cache import ClusterCache
from tests.operator.fakes import KEY, pod_body, service_body


def child(kind, name="chat"):
    return {"metadata": {"name": name, "namespace": "team", "labels": {"inflight.dev/service": "chat"}}, "kind": kind}


def test_a_changed_spec_asks_for_a_look_and_a_changed_status_does_not():
    cache = ClusterCache()
    assert cache.put("InferenceService", service_body()) == KEY
    assert cache.put("InferenceService", service_body(status={"replicas": 1})) is None
    assert cache.service(KEY)["status"] == {"replicas": 1}
    assert cache.put("InferenceService", service_body(generation=2)) == KEY


def test_a_pod_asks_for_a_look_when_what_we_see_of_it_changed():
    cache = ClusterCache()
    assert cache.put("Pod", pod_body("chat-1")) == KEY
    assert cache.put("Pod", pod_body("chat-1")) is None
    assert cache.put("Pod", pod_body("chat-1", ready=False)) == KEY
    assert [pod.ready for pod in cache.pods(KEY)] == [False]
    assert cache.remove("Pod", pod_body("chat-1")) == KEY
    assert cache.pods(KEY) == []


def test_objects_without_the_label_are_nobody_s():
    assert ClusterCache().put("Pod", {"metadata": {"name": "other", "namespace": "team"}}) is None


def test_children_are_found_by_kind_and_name():
    cache = ClusterCache()
    cache.put("Service", child("Service"))
    cache.put("Deployment", child("Deployment"))
    assert cache.child(KEY, "Deployment", "chat")["kind"] == "Deployment"
    assert cache.child(KEY, "Secret", "chat") is None
    assert len(cache.children(KEY)) == 2
    cache.remove("Service", child("Service"))
    assert len(cache.children(KEY)) == 1


def test_a_list_takes_out_what_was_deleted_while_the_watch_was_cut():
    cache = ClusterCache()
    cache.put("Pod", pod_body("chat-1"))
    cache.put("Deployment", child("Deployment"))
    cache.put("InferenceService", service_body())
    cache.begin_listing()
    cache.replace("Pod", [pod_body("chat-2")])
    assert [pod.name for pod in cache.pods(KEY)] == ["chat-2"]
    assert cache.child(KEY, "Deployment", "chat") is not None  # another kind's list says nothing about it
    cache.replace("InferenceService", [])
    assert cache.services() == []


def test_what_events_told_during_a_list_stays():
    cache = ClusterCache()
    cache.put("Pod", pod_body("old"))
    cache.begin_listing()
    cache.put("Pod", pod_body("new"))
    cache.remove("Pod", pod_body("gone"))
    cache.replace("Pod", [pod_body("old"), pod_body("gone")])
    assert [pod.name for pod in cache.pods(KEY)] == ["new", "old"]


def test_a_written_status_is_known_before_its_event():
    cache = ClusterCache()
    cache.put("InferenceService", service_body())
    cache.status_written(KEY, {"replicas": 2})
    assert cache.service(KEY)["status"] == {"replicas": 2}
