"""Pod deletion cost: the emptiest and coldest pod goes first."""

from inflight_operator.decide.draining import UNKNOWN_COST, deletion_costs
from inflight_operator.decide.scaling import PodLoad
from inflight_operator.observe.pods import pod_view
from tests.operator.fakes import pod_body

SECONDS_LATER = "2026-11-20T10:00:07Z"


def load(running, waiting=0):
    return PodLoad(waiting, running, 0.1)


def test_the_emptiest_has_the_lowest_cost_and_the_unknown_the_highest():
    pods = [pod_view(pod_body(name)) for name in ("busy", "idle", "silent")]
    costs = deletion_costs(pods, {"uid-busy": load(3, 2), "uid-idle": load(0)})
    assert costs["idle"] < costs["busy"] < costs["silent"] == UNKNOWN_COST


def test_of_equally_loaded_ones_the_younger_goes():
    young = pod_body("young")
    young["metadata"]["creationTimestamp"] = SECONDS_LATER
    pods = [pod_view(pod_body("old")), pod_view(young)]
    costs = deletion_costs(pods, {"uid-old": load(1), "uid-young": load(1)})
    assert costs["young"] < costs["old"]


def test_only_changes_are_written_and_only_to_pods_that_serve():
    carried = pod_body("carried")
    carried["metadata"]["annotations"] = {"controller.kubernetes.io/pod-deletion-cost": "2000"}
    loading, going = pod_body("loading", ready=False), pod_body("going", deleting=True)
    pods = [pod_view(body) for body in (carried, loading, going)]
    assert deletion_costs(pods, {"uid-carried": load(2)}) == {}
