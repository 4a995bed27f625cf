"""Where models are fetched to, and the Jobs that fetch them, as the API server tells."""

import pytest

from inflight_base.kube.errors import KubeApiError
from inflight_base.manifest.keys import ServiceKey
from inflight_contract.prefetch import PrefetchReport
from inflight_operator.api.status import MAX_PLACES
from inflight_operator.clock import Clock
from inflight_operator.observe.place_finder import FIND_SECONDS, PlaceFinder, Where
from inflight_operator.observe.pods import pod_view
from inflight_operator.observe.prefetch_view import Places, fetches_of
from tests.operator.fakes import pod_body

KEY = ServiceKey("team", "chat")
DIGEST = "sha256:" + "1" * 64
NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}


class Api:
    """A stand-in for the API server: nodes and a claim, or an error."""

    def __init__(self, nodes=(), claim=None):
        self.nodes, self.claim, self.error, self.asked = list(nodes), claim, None, []

    async def list(self, selection):
        self.asked.append(selection)
        if self.error:
            raise self.error
        return self.nodes

    async def get(self, kind, namespace, name):
        self.asked.append((kind, namespace, name))
        if self.error:
            raise self.error
        return self.claim


def node(name, *taints):
    return {"metadata": {"name": name}, "spec": {"taints": list(taints)}}


def finder(api):
    times = iter(range(0, 100_000, int(FIND_SECONDS)))
    return PlaceFinder(api, Clock(lambda: next(times)))


async def find(api, tolerations=(), claim=""):
    return await finder(api).find(KEY, Where({"disk": "fast", "zone": "a"}, list(tolerations), claim))


async def test_nodes_are_found_by_their_labels():
    api = Api([node("b"), node("a")])
    assert await find(api) == Places(("a", "b"))
    assert (api.asked[0].kind, api.asked[0].labels) == ("Node", "disk=fast,zone=a")


@pytest.mark.parametrize(
    ("taint", "toleration", "tolerated"),
    [
        (NOT_READY, {"key": "gpu", "operator": "Exists"}, False),
        ({"key": "gpu", "value": "h200", "effect": "NoSchedule"}, {"key": "gpu", "operator": "Exists"}, True),
        ({"key": "gpu", "value": "h200", "effect": "NoExecute"}, {"operator": "Exists"}, True),
        ({"key": "gpu", "value": "h200", "effect": "NoSchedule"}, {"key": "gpu", "value": "h200"}, True),
        ({"key": "gpu", "value": "h200", "effect": "NoSchedule"}, {"key": "gpu", "value": "b200"}, False),
        ({"key": "gpu", "effect": "NoSchedule"}, {"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "gpu", "effect": "PreferNoSchedule"}, {"key": "other", "operator": "Exists"}, True),
    ],
)
async def test_nodes_that_the_pods_may_not_run_on_are_left_out(taint, toleration, tolerated):
    found = await find(Api([node("a", taint)]), [toleration])
    assert found == (Places(("a",)) if tolerated else Places(obstacle="NoNode"))


async def test_too_many_nodes_are_none():
    nodes = [node(f"n{number}") for number in range(MAX_PLACES + 1)]
    assert (await find(Api(nodes))).obstacle == "TooManyNodes"
    assert len((await find(Api(nodes[1:]))).names) == MAX_PLACES


async def test_an_operator_that_may_not_list_nodes_says_so():
    api = Api()
    api.error = KubeApiError("GET /api/v1/nodes", 403, "nodes is forbidden")
    found = await find(api)
    assert (found.obstacle, "nodes is forbidden" in found.said) == ("NodesUnknown", True)


@pytest.mark.parametrize(
    ("modes", "places"),
    [
        (["ReadWriteMany"], Places(("models",), shared=True)),
        (["ReadWriteOnce"], Places(obstacle="ClaimOfOneNode", said="models")),
        (["ReadOnlyMany"], Places(obstacle="ClaimOfOneNode", said="models")),
        (None, Places(obstacle="NoClaim", said="models")),
    ],
)
async def test_a_claim_is_one_place_if_pods_of_all_nodes_may_write(modes, places):
    api = Api(claim=None if modes is None else {"spec": {"accessModes": modes}})
    assert await find(api, claim="models") == places
    assert api.asked == [("PersistentVolumeClaim", "team", "models")]


async def test_the_api_server_is_asked_once_a_minute_and_its_last_answer_counts_while_it_is_silent():
    now, api, where = [0.0], Api([node("a")]), Where({"disk": "fast"}, [])
    found = PlaceFinder(api, Clock(lambda: now[0]))
    for now[0] in (0.0, FIND_SECONDS - 1):
        assert await found.find(KEY, where) == Places(("a",))
    assert len(api.asked) == 1
    api.error, now[0] = KubeApiError("GET /api/v1/nodes", 503, "busy"), FIND_SECONDS
    assert await found.find(KEY, where) == Places(("a",))
    assert (await found.find(KEY, Where({"disk": "slow"}, []))).obstacle == "NodesUnknown"


def job(*conditions, **metadata):
    notes = {"place": "node-a", "run": "r", "template": "t"}
    annotations = {f"inflight.dev/prefetch-{name}": value for name, value in notes.items()}
    metadata = {"name": "chat-fetch-1", "annotations": annotations, **metadata}
    return {"metadata": metadata, "status": {"conditions": list(conditions)}}


def ended(message):
    state = {"terminated": {"exitCode": 0, "message": message}}
    status = {"phase": "Succeeded", "containerStatuses": [{"name": "engine", "restartCount": 0, "state": state}]}
    return pod_view(pod_body("chat-fetch-1-abc", ready=False, status=status))


def seen(body, pod=None):
    (found,) = fetches_of([body], {} if pod is None else {"chat-fetch-1": pod})
    return found


COMPLETE = {"type": "Complete", "status": "True"}


def test_a_job_that_is_complete_has_the_report_of_its_pod():
    found = seen(job(COMPLETE), ended(PrefetchReport(7, DIGEST).text))
    assert (found.place, found.run, found.template, found.state) == ("node-a", "r", "t", "done")
    assert found.report == PrefetchReport(7, DIGEST)
    assert seen(job(COMPLETE)).state == "done"


@pytest.mark.parametrize(
    "text", ["", "[]", "text", '{"num_bytes": -1, "digest": "a:0"}', '{"num_bytes": 1, "digest": "x"}']
)
def test_what_is_no_report_is_none(text):
    assert seen(job(COMPLETE), ended(text)).report is None


def test_the_end_of_a_job_waits_for_that_of_its_pod():
    assert seen(job(COMPLETE), pod_view(pod_body("chat-fetch-1-abc", ready=False))).state == "running"


def test_a_job_that_failed_says_when_and_why():
    failed = {"type": "Failed", "status": "True", "message": "too long", "lastTransitionTime": "2026-11-20T10:00:00Z"}
    found = seen(job(failed))
    assert (found.state, found.failure, found.ended) == ("failed", "too long", 1795168800.0)


def test_a_pod_of_a_job_that_was_deleted_takes_its_node_until_it_has_ended():
    pod = pod_view(pod_body("chat-fetch-1-abc", ready=False))
    (found,) = fetches_of([], {"chat-fetch-1": pod})
    assert (found.place, found.state) == (pod.node, "leaving")
    assert fetches_of([], {"chat-fetch-1": ended("")}) == ()


def test_a_job_that_is_being_deleted_is_leaving():
    assert seen(job(COMPLETE, deletionTimestamp="2026-11-20T10:00:00Z")).state == "leaving"
