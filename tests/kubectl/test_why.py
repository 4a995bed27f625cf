import io
import json

from rich.console import Console

from inflight_kubectl.access.events import Event
from inflight_kubectl.access.resources import Service
from inflight_kubectl.engines.engine_metrics import Tier, Tiers
from inflight_kubectl.output import print_json
from inflight_kubectl.why.report import explain
from inflight_kubectl.why.text import rendered
from tests.kubectl.objects import NOW, ago, body, condition, decision, event, pod, service

DEMAND = {"requestsPerSecond": 1.82, "replicaRequestsPerSecond": 11.9, "neededReplicas": 0.153}


def act(found, now=NOW):
    return "\n".join(explain(found, [], [], now).would_act)


def waits(found, pods, events=()):
    return list(explain(found, pods, [Event.of(one) for one in events], NOW).waits_for)


def test_demand_is_held_against_what_the_replicas_sustain():
    said = act(service(demand=DEMAND))
    assert "1.82 requests/s are expected and one replica sustains 11.9 requests/s" in said
    assert "up: at 23.8 requests/s at the latest, which is all that 2 replicas sustain" in said


def test_without_measured_costs_the_fallback_targets_are_reported():
    said = act(service())
    assert "3 requests wait, a replica is added above 8 waiting ones (4 per replica)" in said
    assert "the KV cache is 42% full, a replica is added above 80%" in said


def test_the_queue_is_one_number_with_the_parts_at_the_gateway_and_in_engines():
    queue = {"waiting": 9, "atGateway": 6, "inEngines": 3}
    found = service(queue=queue)
    assert "9 requests wait (6 at the gateway, 3 in engines), a replica is added above 8 waiting ones" in act(found)
    assert explain(found, [], [], NOW).waits_for == ("9 requests wait (6 at the gateway, 3 in engines)",)


def test_requests_that_the_gateway_refuses_are_shown_beside_the_demand_that_has_them():
    refusing = service(demand={**DEMAND, "refusedRequestsPerSecond": 2.5})
    assert "before a margin for peaks; the gateway refuses 2.5 requests/s of them" in act(refusing)
    assert "refuses" not in act(service(demand={**DEMAND, "refusedRequestsPerSecond": 0.0}))


def test_targets_of_the_spec_are_reported_also_where_costs_are_measured():
    scaling = {"minReplicas": 1, "maxReplicas": 8, "targets": {"concurrency": 10}}
    assert "15 requests run or wait, a replica is added above 20 (10 each)" in act(
        Service.of(body(spec={"scaling": scaling}, demand=DEMAND))
    )


def test_the_scale_down_window_counts_down_from_the_last_scale_up():
    assert "down: once fewer replicas were enough for 60 s" in act(service())
    assert "20 s at least are left since `replicas 1 -> 2`" in act(service())
    assert "at least" not in act(service(decisions=[decision(seconds=90)]))


def test_bounds_end_what_it_would_do():
    assert "not below scaling.minReplicas, which is 1" in act(service(desiredReplicas=1))
    assert "not above scaling.maxReplicas, which is 8" in act(service(desiredReplicas=8))


def test_in_mode_external_replicas_follow_the_spec():
    found = Service.of(body(spec={"scaling": {"mode": "External"}, "replicas": 3}))
    assert "replicas follow spec.replicas alone" in act(found)


def test_in_mode_external_the_operators_own_choice_is_shown_where_it_is_known():
    unknown = body(spec={"scaling": {"mode": "External"}})
    unknown["status"].pop("desiredReplicas", None)
    known = body(spec={"scaling": {"mode": "External"}})
    known["status"]["desiredReplicas"] = 5
    assert "the operator would order" not in act(Service.of(unknown))
    assert "the operator would order 5" in act(Service.of(known))


def test_a_pod_without_a_node_waits_with_the_schedulers_words():
    unscheduled = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes: Insufficient nvidia.com/gpu"}
    one = pod("chat-2", ready=False, node="", phase="Pending", conditions=[unscheduled], containerStatuses=[])
    assert waits(service(), [pod("chat-1"), one]) == [
        "chat-2 waits for a node since 10m: 0/1 nodes: Insufficient nvidia.com/gpu"
    ]


def test_a_pod_that_pulls_its_image_says_for_how_long():
    creating = [{"name": "engine", "state": {"waiting": {"reason": "ContainerCreating"}}}]
    one = pod("chat-1", ready=False, phase="Pending", containerStatuses=creating)
    assert waits(service(replicas=1, desiredReplicas=1), [one], [event()]) == [
        "chat-1 pulls its image engine:1 since 10s on node-1"
    ]


def test_a_volume_that_cannot_be_mounted_is_reported_by_its_event():
    creating = [{"name": "engine", "state": {"waiting": {"reason": "ContainerCreating"}}}]
    one = pod("chat-1", ready=False, phase="Pending", containerStatuses=creating)
    warning = event(reason="FailedMount", message="configmap not found", kind="Warning")
    assert waits(service(desiredReplicas=1), [one], [warning]) == [
        "chat-1 cannot start on node-1: FailedMount: configmap not found"
    ]


def test_a_pod_that_loads_names_its_start_up_limit():
    said = waits(service(desiredReplicas=1), [pod("chat-1", ready=False)])
    assert said == [
        "chat-1 loads its model since 9m on node-1; the container is restarted after 30m (rollout.startupTimeout)"
    ]


def test_a_pod_that_loads_for_long_says_how_far_it_is():
    loading = [{"pod": "chat-1", "bytes": 4, "totalBytes": 16, "bytesPerSecond": 1, "summary": "4 GB of 16 GB"}]
    (said,) = waits(service(desiredReplicas=1, loading=loading), [pod("chat-1", ready=False)])
    assert said.startswith("chat-1 loads its model since 9m on node-1: 4 GB of 16 GB; the container is restarted")


def test_the_lead_time_of_a_replica_is_said_by_phase():
    said = "a new replica takes about 6.3s: scheduled 300ms"
    assert f"lead time: {said}" in act(service(startUp={"summary": said, "seconds": 6.3}))
    assert "lead time" not in act(service())


def test_an_operator_that_has_not_seen_the_newest_spec_is_waited_for():
    newer = body()
    newer["metadata"]["generation"] = 2
    assert "has not acted on the newest spec yet (generation 2, the status is of 1)" in waits(Service.of(newer), [])[0]
    assert "not seen this service yet" in waits(service(observedGeneration=None), [])[0]


def test_many_pods_are_counted_and_not_listed():
    pods = [pod(f"chat-{n}", ready=False) for n in range(30)]
    said = waits(service(desiredReplicas=30), pods)
    assert len(said) == 9
    assert said[-1] == "22 more pods are not ready"


def test_nodes_without_the_model_are_waited_for_until_they_have_it():
    said = {"reason": "PrefetchFailing", "message": "0 of 2 nodes have the model; on node-1: its disk is full"}
    assert f"model.prefetch: {said['message']}" in waits(service(prefetch=said), [])
    done = {"reason": "Prefetched", "message": "2 of 2 nodes have the model"}
    assert waits(service(prefetch=done), []) == waits(service(), [])


def test_the_text_has_every_section_and_no_markup_of_its_own():
    console = Console(width=80, record=True, file=io.StringIO())
    found = service(conditions=[condition("Ready", "False", "Unschedulable", "1 of 1 pod [waits] for nvidia.com/gpu")])
    console.print(rendered(explain(found, [], [], NOW)))
    shown = console.export_text()
    assert "default/chat is Failing" in shown
    assert "✗ Ready: takes no requests (Unschedulable)" in shown
    assert "1 of 1 pod [waits] for nvidia.com/gpu" in shown
    for title in ("CONDITIONS", "WAITS FOR", "WHAT WOULD MAKE IT ACT", "LAST DECISIONS"):
        assert title in shown
    assert "rate 1.82, each 11.9" in shown


def test_json_has_the_same_in_camel_case(capsys):
    print_json(explain(service(), [], [], NOW))
    found = json.loads(capsys.readouterr().out)
    assert found["at"] == ago(0)
    assert found["waitsFor"] == []
    assert found["decisions"][0]["numbers"] == {"rate": 1.82, "each": 11.9}
    assert found["conditions"][0]["good"] is True


def test_tiers_of_the_kv_cache_are_shown_with_what_they_refused():
    disk = Tier("disk", 71, 48, 0.75e9, 1, 7, {"slower": 0, "stalled": 5, "late": 3})
    host = Tier("host", 9, 160, None, 0, 0, {})

    def written(tiers):
        console = Console(width=200, record=True, file=io.StringIO())
        console.print(rendered(explain(service(), [], [], NOW, tiers=tiers)))
        return console.export_text()

    said = written(Tiers((host, disk)))
    assert "- Host memory: 9 blocks held, 160 tokens loaded " in said
    assert "- Disk: 71 blocks held, 48 tokens loaded at 0.75 GB/s " in said
    assert "1 blocks failed, 7 blocks were not written, 5 requests computed its blocks, as the disk hung" in said
    assert "took less time" not in said
    assert "KV CACHE" not in written(None)
    assert "pod chat-1 is silent" in written(Tiers((), "pod chat-1 is silent"))
