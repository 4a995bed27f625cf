"""All disruptions: a function for each, and the table of them in the order in which they run."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from e2e.disruptions import processes
from e2e.disruptions.faulty_page import faulty_page
from e2e.disruptions.stage import GATEWAY, OPERATOR, REPLICAS, Stage, replicas, specification, system_pods
from inflight_base.manifest.names import child_names
from tools.localcluster import ClusterError, build_image, kubectl, layout
from tools.localcluster.node.own_node import OwnNode
from tools.testbed.helm import CHART, OPERATOR_NAMESPACE, RELEASE, helm
from tools.testbed.load_pod import driver_pod
from tools.testbed.pods import Pod
from tools.testbed.service import Service

CHANGES = 20
CHANGE_SECONDS = 1.0
AWAY_SECONDS = 60
DRAIN_SECONDS = 20
LONG = 20
LONG_ANSWERS = [
    f"--clients={LONG}", f"--requests={LONG}", "--max-tokens=500", "--prompt-words=20", "--patience=120",
    "--seconds=600",
]  # fmt: skip
LONG_SECONDS = 8
"""Time in which they get some of their tokens."""
PROMPTS = ["--clients=4", "--seconds=600", "--max-tokens=60", "--prompt-words=100", "--patience=60"]
"""Requests whose prompts have blocks to hand over."""
HANG_SECONDS = 75
"""Duration of a hang, longer than the clients' patience, so that requests to the pod are counted as lost."""


@dataclass(frozen=True)
class Phase:
    """A disruption.

    Attributes:
        name: its name for `--phases`.
        about: a line about it.
        run: prepares, yields once for the traffic to begin, disturbs, and returns when the service has recovered. It
            registers what undoes its changes outside the service's spec with `stage.on_way_back`, before each change;
            requests are sent through the way back too.
        from_node: it is made from the node, which has to be this machine.
        of_gateway: it disrupts the gateway, and needs a service behind it.
    """

    name: str
    about: str
    run: Callable[[Stage], Iterator[None]]
    from_node: bool = False
    of_gateway: bool = False


def steady(stage: Stage) -> Iterator[None]:
    """The traffic goes on for as long as `--seconds` says."""
    yield


def scale_out(stage: Stage) -> Iterator[None]:
    yield
    stage.apply(scaling=replicas(REPLICAS + 1))
    stage.wait_ready(REPLICAS + 1)


def scale_in(stage: Stage) -> Iterator[None]:
    stage.apply(scaling=replicas(REPLICAS + 1))
    stage.wait_ready(REPLICAS + 1)
    yield
    stage.apply()
    stage.wait_ready(REPLICAS)


def rollout(strategy: str, stage: Stage) -> Iterator[None]:
    stage.apply(rollout={"strategy": strategy})
    yield
    with stage.replaced("all pods", stage.pods):
        stage.apply(rollout={"strategy": strategy}, template={"labels": {"disruption": "rollout"}})
    stage.wait_ready(REPLICAS)


def operator_upgraded(stage: Stage) -> Iterator[None]:
    """The other image is built from the same sources with another version in its labels: another digest and tag."""
    version = f"disruption-{time.time():.0f}"
    repository, _, tag = build_image(
        "operator", stage.say, tag="disruption", arguments={"VERSION": version}
    ).rpartition(":")
    yield
    in_place = ("--namespace", OPERATOR_NAMESPACE, "--wait", "--timeout", "3m")
    with stage.replaced("the operator's pods", partial(system_pods, OPERATOR)):
        stage.on_way_back(helm, "rollback", RELEASE, *in_place)
        image = ("--set", f"image.repository={repository}", "--set", f"image.tag={tag}")
        helm("upgrade", RELEASE, str(CHART), *in_place, "--reuse-values", *image)


def operator_killed(stage: Stage) -> Iterator[None]:
    yield
    before = {pod.uid: pod.restarts for pod in system_pods(OPERATOR)}
    processes.send([pid for uid in before for pid in processes.of_containers(uid)], signal.SIGKILL)
    stage.wait(
        "the operator restarted", lambda: all(pod.restarts > before.get(pod.uid, -1) for pod in system_pods(OPERATOR))
    )
    stage.wait_available(OPERATOR)


def api_server_stopped(stage: Stage) -> Iterator[None]:
    yield
    node = OwnNode(layout.current(), stage.say)
    stage.on_way_back(node.start_api_server)
    node.stop_api_server()
    time.sleep(AWAY_SECONDS)


def node_drained(stage: Stage) -> Iterator[None]:
    return _drained(stage, f"inflight.dev/service={stage.service.name}", stage.ready_pods)


def gateway_drained(stage: Stage) -> Iterator[None]:
    def serving() -> list[Pod]:
        return [pod for pod in system_pods(GATEWAY) if pod.ready]

    return _drained(stage, f"app.kubernetes.io/name={GATEWAY}", serving)


def _drained(stage: Stage, selector: str, serving: Callable[[], list[Pod]]) -> Iterator[None]:
    """`kubectl drain` of some pods on the node of one of them.

    With a single node the replacement of the first evicted pod finds no place, so the disruption budget protects the
    second until the drain's time is over; on uncordon the first comes back.

    Args:
        selector: label selector of the pods.
        serving: those of them that serve and are not being deleted.
    """
    yield
    before = {pod.uid: pod for pod in serving()}
    node = next(iter(before.values())).node
    stage.on_way_back(kubectl, "uncordon", node)
    try:
        kubectl(
            "drain", node, f"--pod-selector={selector}", "--delete-emptydir-data",
            "--ignore-daemonsets", f"--timeout={DRAIN_SECONDS}s",
        )  # fmt: skip
        ended = "the drain ended"
    except ClusterError as error:
        if "disruption budget" not in str(error) and "did not complete" not in str(error):
            raise
        ended = f"the budget held the drain for {DRAIN_SECONDS} s"
    kept = before.keys() & {pod.uid for pod in serving()}
    stage.note = f"{len(before) - len(kept)} of {len(before)} pods evicted, {ended}"
    if len(kept) == len(before):
        raise RuntimeError("the drain evicted no pod")
    kubectl("uncordon", node)
    stage.wait("as many pods as before", lambda: len(serving()) == len(before))


def limits_changed(stage: Stage) -> Iterator[None]:
    """The bounds of `spec.tuning`, both ends at one value: the operator moves the limits in force there at once."""

    def tuning(seqs: int) -> dict[str, object]:
        return {"mode": "Auto", "maxNumSeqs": {"min": seqs, "max": seqs}}

    stage.apply(tuning=tuning(16))
    yield
    pod = stage.victim().name
    before = stage.service.runtime_config(pod)["revision"]
    started = time.monotonic()
    for number in range(CHANGES):
        patch = {"spec": {"tuning": tuning(8 if number % 2 else 16)}}
        kubectl(
            "-n", stage.service.namespace, "patch", "inferenceservice", stage.service.name,
            "--type=merge", "-p", json.dumps(patch),
        )  # fmt: skip
        time.sleep(max(0.0, started + (number + 1) * CHANGE_SECONDS - time.monotonic()))
    after = stage.service.runtime_config(pod)["revision"]
    stage.note = f"{CHANGES} patches of the bounds, {after - before} changes of the limits in force"
    if after == before:
        raise RuntimeError("the patches of spec.tuning changed no limit in force")


def pod_deleted(stage: Stage) -> Iterator[None]:
    yield
    victim = stage.victim()
    kubectl("-n", stage.service.namespace, "delete", "pod", victim.name, "--wait=false")
    stage.wait("the pod gone", lambda: victim.uid not in {pod.uid for pod in stage.pods()})
    stage.wait_ready(REPLICAS)


def handed_over(stage: Stage) -> Iterator[None]:
    """With host memory for keys and values, the other pod goes on with the answers of a pod that is deleted."""
    stage.apply(engine=specification()["engine"] | {"kvCache": {"swap": "256Mi"}})
    stage.wait("pods with host memory", stage.rolled_out)
    stage.wait_ready(REPLICAS)
    yield
    with driver_pod(stage.service, "load-long-answers", LONG_ANSWERS, image=stage.image) as load:
        victim, other = stage.ready_pods()
        stage.wait("long answers at the pod", lambda: _sample(stage, victim, "vllm:num_requests_running") >= LONG // 3)
        time.sleep(LONG_SECONDS)
        began = time.monotonic()
        kubectl("-n", stage.service.namespace, "delete", "pod", victim.name, "--wait=false")
        stage.wait("the pod gone", lambda: victim.uid not in {pod.uid for pod in stage.pods()})
        gone = time.monotonic() - began
        if load.exit_code(stage.wait_seconds) != 0:
            raise RuntimeError("long answers were lost")
    read = _sample(stage, other, "inflight_peer_loaded_blocks_total")
    stage.note = f"gone after {gone:.1f} s, {read:.0f} blocks of its answers read by the other pod"
    if not read:
        raise RuntimeError("the other pod computed all answers anew")
    stage.wait_ready(REPLICAS)


def prefill_killed(stage: Stage) -> Iterator[None]:
    """Every process of the pod that computes the prompts is killed; the pods that answer compute them meanwhile."""
    prefill = Service(child_names(stage.service.name).prefill, stage.service.namespace)

    def serving() -> list[Pod]:
        return [pod for pod in prefill.pods() if pod.ready]

    def read() -> float:
        return sum(_sample(stage, pod, "inflight_peer_loaded_blocks_total") for pod in stage.ready_pods())

    engine = specification()["engine"] | {"kvCache": {"swap": "256Mi"}}
    stage.on_way_back(stage.wait, "no pod that computes prompts", lambda: not prefill.pods())
    stage.on_way_back(stage.apply)
    stage.apply(engine=engine, disaggregation={"mode": "Fixed", "prefill": {"maxReplicas": 1}})
    stage.wait("pods with host memory", stage.rolled_out)
    stage.wait_ready(REPLICAS)
    stage.wait("a pod that computes prompts", lambda: len(serving()) == 1)
    yield
    with driver_pod(stage.service, "load-prompts", PROMPTS, image=stage.image):
        stage.wait("prompts handed over", lambda: read() > 0)
        victim = serving()[0]
        stage.strike(victim, processes.of_pod(victim.uid), signal.SIGKILL, whole=True)
        stage.wait("the killed pod to be noticed", lambda: not serving())
        stage.wait("a pod that computes prompts", lambda: len(serving()) == 1)
        before = read()
        stage.wait("prompts handed over again", lambda: read() > before)
    stage.note = f"{before:.0f} blocks read until the pod computed prompts again"


def _sample(stage: Stage, pod: Pod, name: str) -> float:
    """The value of a metric on an engine's page."""
    path = f"/api/v1/namespaces/{stage.service.namespace}/pods/{pod.name}:8001/proxy/metrics"
    lines = kubectl("get", "--raw", path).splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))


def engine_killed(stage: Stage) -> Iterator[None]:
    yield
    victim = stage.victim()
    _strike(stage, victim, [processes.engine_process(victim.uid)], signal.SIGKILL, whole=False)
    stage.wait_ready(REPLICAS)


def pod_killed(stage: Stage) -> Iterator[None]:
    yield
    victim = stage.victim()
    _strike(stage, victim, processes.of_pod(victim.uid), signal.SIGKILL, whole=True)
    stage.wait_ready(REPLICAS)


def pod_hung(stage: Stage) -> Iterator[None]:
    """Ends when the engine process was replaced, or after 75 s."""
    yield
    victim = stage.victim()
    stopped = processes.of_pod(victim.uid)
    stage.on_way_back(processes.send, stopped, signal.SIGCONT)
    began = time.monotonic()
    _strike(stage, victim, stopped, signal.SIGSTOP, whole=True, seconds=HANG_SECONDS)
    stage.note = f"the engine was replaced {time.monotonic() - began:.0f} s after it hung"
    stage.wait_ready(REPLICAS)


def _strike(
    stage: Stage,
    victim: Pod,
    pids: Sequence[int],
    sent: signal.Signals,
    *,
    whole: bool,
    seconds: float | None = None,
) -> None:
    """Send a signal to processes of an engine's pod, and wait for an engine process that is none of them."""

    def replaced() -> bool:
        with suppress(LookupError):
            return processes.engine_process(victim.uid) not in pids
        return False

    stage.strike(victim, pids, sent, whole=whole)
    stage.wait("another engine process", replaced, seconds)


def gateway_deleted(stage: Stage) -> Iterator[None]:
    yield
    victim = system_pods(GATEWAY)[0]
    kubectl("-n", OPERATOR_NAMESPACE, "delete", "pod", victim.name, "--wait=false")
    stage.wait("another pod", lambda: victim.uid not in {pod.uid for pod in system_pods(GATEWAY)})
    stage.wait_available(GATEWAY)


def gateway_rolled(stage: Stage) -> Iterator[None]:
    yield
    with stage.replaced("the gateway's pods", partial(system_pods, GATEWAY)):
        kubectl("-n", OPERATOR_NAMESPACE, "rollout", "restart", f"deployment/{GATEWAY}")
    stage.wait_available(GATEWAY)


def gateway_switched(stage: Stage) -> Iterator[None]:
    """`spec.gateway.enabled` off and on. The Service keeps its address and leads to other pods; clients connect anew
    for each request, and connections to the pods before end as the pods are replaced."""

    def leads_to(pods: Callable[[], list[Pod]]) -> bool:
        return stage.rolled_out() and stage.destinations() == {pod.address for pod in pods() if pod.ready}

    yield
    address = stage.cluster_ip()
    for enabled, pods in ((False, stage.ready_pods), (True, partial(system_pods, GATEWAY))):
        stage.apply(gateway={"enabled": enabled})
        goal = f"the Service to lead to the {'gateway' if enabled else 'engines'}"
        stage.wait(goal, partial(leads_to, pods))
        stage.wait_ready(REPLICAS)
    if (after := stage.cluster_ip()) != address:
        raise RuntimeError(f"the Service had the address {address}, and has {after}")
    stage.note = f"the Service kept its address {address}"


def picker_killed(stage: Stage) -> Iterator[None]:
    """The picker of the pod that owns the service. Envoy and relays of the pod go on without it: running streams are
    not touched, and all relays ask the next owner. As the pod is not ready meanwhile, new connections go to others."""
    yield
    victim = stage.gateway_pods()[0]
    processes.send(_picker(victim), signal.SIGKILL)
    _wait_gateway_restarted(stage, "the picker restarted", victim)


def picker_hung(stage: Stage) -> Iterator[None]:
    """The same with a picker that hangs, until its liveness probe has failed three times."""
    yield
    victim = stage.gateway_pods()[0]
    stopped = _picker(victim)
    stage.on_way_back(processes.send, stopped, signal.SIGCONT)
    processes.send(stopped, signal.SIGSTOP)
    _wait_gateway_restarted(stage, "the picker restarted", victim)


def _picker(pod: Pod) -> list[int]:
    found = processes.with_argument(pod.uid, "picker")
    if not found:
        raise RuntimeError("no picker was found")
    return found


def gateway_killed(number: int, stage: Stage) -> Iterator[None]:
    """Streams on the killed pod fail: nothing else knows what their clients have. New requests go to the other pods.

    Args:
        number: of the pod, see `Stage.gateway_pods`.
    """
    yield
    victim = stage.gateway_pods()[number]
    stage.strike_gateway(victim, signal.SIGKILL)
    _wait_gateway_restarted(stage, "the pod's containers restarted", victim)


def owner_hung(stage: Stage) -> Iterator[None]:
    """Requests that have reached the pod hang until the clients' patience ends, or the pod goes on."""
    yield
    stage.strike_gateway(stage.gateway_pods()[0], signal.SIGSTOP, within=HANG_SECONDS)
    time.sleep(HANG_SECONDS)


def _wait_gateway_restarted(stage: Stage, goal: str, victim: Pod) -> None:
    def restarted() -> bool:
        return any(pod.uid == victim.uid and pod.restarts > victim.restarts for pod in system_pods(GATEWAY))

    stage.wait(goal, restarted)
    stage.wait_available(GATEWAY)


_ORDER = (
    Phase("steady", "nothing happens", steady),
    Phase("scale-out", f"{REPLICAS} -> {REPLICAS + 1} replicas", scale_out),
    Phase("scale-in", f"{REPLICAS + 1} -> {REPLICAS} replicas", scale_in),
    Phase(
        "rollout-surge-first",
        "a change of the pod template, a new pod before an old one goes",
        partial(rollout, "SurgeFirst"),
    ),
    Phase(
        "rollout-release-first",
        "a change of the pod template, an old pod goes first",
        partial(rollout, "ReleaseFirst"),
    ),
    Phase("operator-upgraded", "helm upgrade to another operator image, and back", operator_upgraded),
    Phase(
        "operator-killed",
        "kill -9 of the operator's processes, all its pods at once",
        operator_killed,
        from_node=True,
    ),
    Phase("api-server-stopped", f"the API server is away for {AWAY_SECONDS} s", api_server_stopped, from_node=True),
    Phase("node-drained", "kubectl drain against the disruption budget, then uncordon", node_drained),
    Phase("limits-changed", f"tuning bounds patched every second, {CHANGES} times", limits_changed),
    Phase("pod-deleted", "kubectl delete of one pod", pod_deleted),
    Phase(
        "handed-over",
        f"kubectl delete of one pod with host memory and {LONG} answers of 500 tokens under way",
        handed_over,
        of_gateway=True,
    ),
    Phase(
        "prefill-killed",
        "kill -9 of every process of the one pod that computes the prompts of two others",
        prefill_killed,
        from_node=True,
        of_gateway=True,
    ),
    Phase("engine-killed", "kill -9 of the engine process of one pod", engine_killed, from_node=True),
    Phase("pod-killed", "kill -9 of every process of one pod", pod_killed, from_node=True),
    Phase("pod-hung", "SIGSTOP to every process of one pod", pod_hung, from_node=True),
    Phase(
        "metrics-page-hangs",
        "one pod accepts the operator's question for metrics and never answers",
        partial(faulty_page, "hang"),
        from_node=True,
    ),
    Phase(
        "metrics-page-huge",
        "one pod answers the operator's question for metrics with 100 MB",
        partial(faulty_page, "huge"),
        from_node=True,
    ),
    Phase("gateway-deleted", "kubectl delete of one gateway pod", gateway_deleted, of_gateway=True),
    Phase("gateway-rolled", "kubectl rollout restart of the gateway", gateway_rolled, of_gateway=True),
    Phase(
        "gateway-drained",
        "kubectl drain of the gateway's pods against their disruption budget, then uncordon",
        gateway_drained,
        of_gateway=True,
    ),
    Phase(
        "gateway-switched",
        "spec.gateway.enabled false, then true again",
        gateway_switched,
        of_gateway=True,
    ),
    Phase(
        "picker-killed",
        "kill -9 of the picker that owns the service",
        picker_killed,
        from_node=True,
        of_gateway=True,
    ),
    Phase(
        "picker-hung",
        "SIGSTOP to the picker that owns the service",
        picker_hung,
        from_node=True,
        of_gateway=True,
    ),
    Phase(
        "gateway-killed",
        "kill -9 of every process of a gateway pod that does not own the service",
        partial(gateway_killed, 1),
        from_node=True,
        of_gateway=True,
    ),
    Phase(
        "owner-killed",
        "kill -9 of every process of the gateway pod that owns the service",
        partial(gateway_killed, 0),
        from_node=True,
        of_gateway=True,
    ),
    Phase(
        "owner-hung",
        f"SIGSTOP to every process of the gateway pod that owns the service, for {HANG_SECONDS} s",
        owner_hung,
        from_node=True,
        of_gateway=True,
    ),
)

PHASES = {phase.name: phase for phase in _ORDER}
"""Phases by name, in the order in which they run."""

IN_MAKE_TEST = ("operator-killed", "pod-deleted", "engine-killed", "pod-hung")
"""Phases that `make test` runs: the most important ones within 4 minutes. Scenarios have a rollout under traffic."""

IN_MAKE_TEST_WITH_GATEWAY = ("gateway-rolled", "owner-killed")
"""Phases that `make test` runs against a service behind the gateway. Its scenarios kill and hang engines."""
