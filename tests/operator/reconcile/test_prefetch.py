"""A model that is fetched before engines need it, from the spec to the status, round by round."""

from dataclasses import replace

from inflight_contract.prefetch import PrefetchReport
from inflight_operator.observe.place_finder import FIND_SECONDS
from inflight_operator.render.plan import ModelCache
from tests.operator.fakes import KEY, delete, pod_body

DIGEST = "sha256:" + "1" * 64
SPEC = {"model": {"source": "s3://models/a", "prefetch": {"nodeSelector": {"disk": "fast"}}}}


def start(world, *nodes, spec=SPEC):
    world.settings = replace(world.settings, model_cache=ModelCache("", "/var/cache", 10**12))
    world.api.nodes = [{"metadata": {"name": name}, "spec": {}} for name in nodes]
    world.service(spec=spec)


def jobs(world):
    return {
        one["metadata"]["annotations"]["inflight.dev/prefetch-place"]: one
        for one in world.cache.children(KEY)
        if one["kind"] == "Job"
    }


def end(world, node, message, *, code=0):
    """Ends the Job of a node as its controller does, with the last words of its pod."""
    job = jobs(world)[node]
    name = job["metadata"]["name"]
    state = {"terminated": {"exitCode": code, "message": message}}
    status = {"phase": "Failed" if code else "Succeeded"}
    status["containerStatuses"] = [{"name": "engine", "restartCount": 0, "state": state}]
    body = pod_body(f"{name}-abc", ready=False, status=status)
    body["metadata"]["labels"] = job["spec"]["template"]["metadata"]["labels"]
    body["metadata"]["ownerReferences"] = [{"kind": "Job", "name": name, "uid": "job", "controller": True}]
    world.cache.put("Pod", body)
    kind = {"type": "Failed", "lastTransitionTime": "2026-11-20T10:00:00Z"} if code else {"type": "Complete"}
    world.cache.put("Job", {**job, "status": {"conditions": [{**kind, "status": "True"}]}})


async def removed(world):
    """Removes the Jobs that the operator deletes in the next round, as the garbage collector does."""
    await world.round()
    for call in [call for call in world.api.calls if call[:2] == ("delete", "Job")]:
        found = next(one for one in jobs(world).values() if one["metadata"]["name"] == call[2])
        delete(world.cache, "Job", found)


def events(world):
    return [(call[1], call[2]) for call in world.api.calls if call[0] == "event" and "Prefetch" in call[2]]


async def test_each_node_gets_the_model_and_the_status_says_how_far_that_is(world):
    start(world, "a", "b")
    await world.round()
    assert jobs(world).keys() == {"a", "b"}
    assert world.status["prefetch"]["message"] == "0 of 2 nodes have the model"
    end(world, "a", PrefetchReport(10**9, DIGEST).text)
    await removed(world)
    found = world.status["prefetch"]
    assert (found["done"], found["total"], found["bytes"], found["totalBytes"]) == (1, 2, 10**9, 2 * 10**9)
    assert jobs(world).keys() == {"b"}
    end(world, "b", PrefetchReport(10**9, DIGEST).text)
    await removed(world)
    found = world.status["prefetch"]
    assert (found["reason"], found["digest"], found["places"]) == ("Prefetched", DIGEST, ["a", "b"])
    assert events(world) == [("Normal", "Prefetched")]
    assert not world.cache.pods(KEY), "pods that fetch are no replicas"


async def test_a_new_operator_process_fetches_nothing_again_and_a_node_that_joins_gets_the_model(world):
    start(world, "a")
    await world.round()
    end(world, "a", PrefetchReport(10**9, DIGEST).text)
    await removed(world)
    world.restart()
    await world.round()
    assert not jobs(world)
    world.api.nodes.append({"metadata": {"name": "b"}, "spec": {}})
    await world.round(FIND_SECONDS)
    assert jobs(world).keys() == {"b"}


async def test_a_failure_is_a_sentence_and_a_warning_once(world):
    start(world, "a")
    await world.round()
    end(world, "a", "error: s3://models/a is not in the model cache: its disk is full", code=1)
    await world.round()
    said = "on a: failed to start: s3://models/a is not in the model cache: its disk is full"
    assert said in world.status["prefetch"]["message"]
    assert events(world) == [("Warning", "PrefetchFailing")]
    await world.round()
    assert events(world) == []


async def test_without_a_cache_in_the_namespace_a_sentence_says_what_is_missing(world):
    start(world, "a")
    world.settings = replace(world.settings, model_cache=None)
    await world.round()
    assert not jobs(world)
    assert world.status["prefetch"]["reason"] == "PrefetchNoCache"


async def test_who_no_longer_asks_has_no_jobs_and_no_status(world):
    start(world, "a")
    await world.round()
    world.service(spec={"model": {"source": "s3://models/a"}}, generation=2, status=world.status)
    await removed(world)
    assert not jobs(world)
    assert "prefetch" not in world.status


async def test_services_that_do_not_ask_cause_no_calls(world):
    start(world, "a", spec={"model": {"source": "s3://models/a"}})
    await world.round()
    assert not [call for call in world.api.calls if call[0] in ("list", "get") and call[1] in ("Node", "Job")]
