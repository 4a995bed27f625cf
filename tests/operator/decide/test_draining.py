"""Pod deletion cost: the emptiest and coldest pod goes first."""

from hypothesis import given
from hypothesis import strategies as st

from inflight_operator.decide.draining import UNKNOWN_COST, deletion_costs
from inflight_operator.observe.pods import pod_view
from tests.operator.fakes import pod_body
from tests.operator.observe.samples import loaded

SECONDS_LATER = "2026-11-20T10:00:07Z"


def load(running, waiting=0):
    return loaded(waiting, running, 0.1)


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


def test_the_one_whose_requests_hold_fewer_tokens_goes_whatever_their_number():
    pods = [pod_view(pod_body(name)) for name in ("long", "short", "untold")]
    loads = {"uid-long": loaded(0, 2, 0.5, tokens=60_000.0), "uid-short": loaded(1, 8, 0.1, tokens=5_000.0)}
    costs = deletion_costs(pods, {**loads, "uid-untold": load(20)})
    assert costs["short"] < costs["untold"] < costs["long"]


def test_of_equally_empty_ones_the_colder_prefix_cache_goes_whatever_its_age():
    young = pod_body("warm")
    young["metadata"]["creationTimestamp"] = SECONDS_LATER
    pods = [pod_view(pod_body("cold")), pod_view(young)]
    warm = {"uid-cold": loaded(0, 0, 0.0, warmth=0.1), "uid-warm": loaded(0, 0, 0.0, warmth=0.6)}
    assert deletion_costs(pods, warm)["warm"] == 1
    busy = {**warm, "uid-cold": loaded(0, 1, 0.0, tokens=40.0, warmth=0.1)}
    costs = deletion_costs(pods, busy)
    assert costs["warm"] < costs["cold"]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(-3, 9)), min_size=1, max_size=8),
    st.integers(1, 8),
)
def test_kubernetes_removes_the_emptiest_whatever_costs_pods_have_and_only_theirs_are_written(pods, leaving):
    bodies = [pod_body(f"pod-{number}") for number in range(len(pods))]
    for body, (_, carried) in zip(bodies, pods, strict=True):
        body["metadata"]["annotations"] = {"controller.kubernetes.io/pod-deletion-cost": str(carried)}
    loads = {f"uid-pod-{number}": load(running) for number, (running, _) in enumerate(pods)}
    views = [pod_view(body) for body in bodies]
    costs = deletion_costs(views, loads, leaving)
    after = {pod.name: costs.get(pod.name, pod.deletion_cost) for pod in views}
    whole = {**{pod.name: pod.deletion_cost for pod in views}, **deletion_costs(views, loads)}
    removed = sorted(after, key=after.__getitem__)[:leaving]
    assert removed == sorted(whole, key=whole.__getitem__)[:leaving]
    assert len(set(after.values()) & set(range(-leaving, 0))) == len(removed)
    assert costs.keys() - removed == {pod.name for pod in views if pod.deletion_cost < 0} - {*removed}


def test_costs_are_such_as_kubernetes_takes():
    huge = {"uid-huge": loaded(0, 65_536, 1.0, tokens=2.0**53)}
    assert deletion_costs([pod_view(pod_body("huge"))], huge)["huge"] < UNKNOWN_COST == 2**31 - 1


def test_only_changes_are_written_and_only_to_pods_that_serve():
    carried = pod_body("carried")
    carried["metadata"]["annotations"] = {"controller.kubernetes.io/pod-deletion-cost": "20000"}
    loading, going = pod_body("loading", ready=False), pod_body("going", deleting=True)
    pods = [pod_view(body) for body in (carried, loading, going)]
    assert deletion_costs(pods, {"uid-carried": load(2)}) == {}
