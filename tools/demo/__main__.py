"""`python -m tools.demo`: the steps that a user would take by hand, in order, with explanations."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tools.demo.burst import Slo, Watch, run_burst, slo_of, verdict
from tools.localcluster import ClusterError, choose, kubeconfig_path, kubectl
from tools.localcluster.layout import REPOSITORY
from tools.signals import exit_code
from tools.testbed.install import install
from tools.testbed.load_pod import ask_pod
from tools.testbed.numbers import numbers
from tools.testbed.pods import Pod
from tools.testbed.service import Service, is_ready

EXAMPLE = REPOSITORY / "examples" / "chat.yaml"
CHAT = Service("chat")
QUESTION = "What is the capital of France? Answer in one sentence."
LIGHT_RATE = 1.0
"""Requests a second that one replica serves with room on any machine."""
STEPS = (0.5, 0.75, 1.0, 1.25)
"""Rates of the burst's steps, as shares of what one replica sustains by its latest cost model. The last step at the
latest needs a second replica."""
STEP_SECONDS = 40
KNOWN_SECONDS = 30
READY_SECONDS = 240
SETTLE_SECONDS = 120


@contextmanager
def section(number: int, title: str) -> Iterator[None]:
    """A numbered part of the demo with its duration."""
    print(f"\n{number}. {title}", flush=True)
    started = time.monotonic()
    yield
    print(f"   ({time.monotonic() - started:.1f} s)", flush=True)


def remove_former() -> None:
    """Remove the service of an earlier demo, so that everything is seen from its beginning.

    Raises:
        ClusterError: there is one in a cluster that the user named, where it may be somebody's.
    """
    found = kubectl("-n", CHAT.namespace, "get", "inferenceservice", CHAT.name, "--ignore-not-found", "-o", "name")
    if found and choose.current() is choose.Choice.NAMED:
        raise ClusterError(
            f"the cluster has an InferenceService {CHAT.name} in {CHAT.namespace} already: delete it first"
        )
    kubectl("-n", CHAT.namespace, "delete", "inferenceservice", CHAT.name, "--ignore-not-found", "--wait")
    deadline = time.monotonic() + READY_SECONDS
    while CHAT.pods() and time.monotonic() < deadline:
        time.sleep(0.5)


def apply_and_wait() -> Pod:
    """Apply the example; returns its pod once it is Ready."""
    print("   $ kubectl apply -f examples/chat.yaml")
    spec = [line for line in EXAMPLE.read_text().splitlines() if not line.startswith("#")]
    print("\n".join(f"     {line}" for line in spec))
    kubectl("apply", "-f", str(EXAMPLE))
    CHAT.wait("the service to be Ready", is_ready, seconds=READY_SECONDS, saying=waiting)
    pod = next(pod for pod in CHAT.pods() if pod.ready)
    print(f"   Ready: pod {pod.name}")
    return pod


def waiting(message: str) -> None:
    print(f"   waiting: {message}", flush=True)


def chat(client_image: str) -> None:
    """Ask through the service's DNS name, from a pod."""
    print(f"   from a pod, to {CHAT.url}/v1/chat/completions: {QUESTION}\n")
    with ask_pod(CHAT, "ask", QUESTION, image=client_image) as pod:
        print("   ", end="")
        for piece in pod.follow():
            print(piece.replace("\n", "\n   "), end="", flush=True)
        if pod.exit_code() != 0:
            raise RuntimeError("the question was not answered")
    print()


def traffic(watch: Watch, slo: Slo, rate: float, client_image: str) -> None:
    """Send `rate` requests a second for a step, and print what clients and operator made of it."""
    print(f"   {rate:.3g} requests/s for {STEP_SECONDS} s", flush=True)
    arguments = ["--clients=64", "--requests=100000", "--max-tokens=32", "--prompt-words=60"]
    closing = run_burst(CHAT, watch, [*arguments, f"--rate={rate}", f"--seconds={STEP_SECONDS}"], image=client_image)
    print(f"   {closing['answered']} of {closing['sent']} requests answered, {closing['retries']} retries, none lost")
    print(f"   {verdict(closing, slo)}")


def sustained() -> float:
    """Requests a second that one replica sustains within the targets, by the operator's latest numbers.

    Raises:
        RuntimeError: the operator has no reliable cost model of the replica.
    """
    deadline = time.monotonic() + KNOWN_SECONDS
    while True:
        seen = numbers(CHAT)
        each, rate, need = seen.replica_requests_per_second, seen.demand_requests_per_second, seen.needed_replicas
        if each is not None and rate is not None and need is not None:
            break
        if time.monotonic() > deadline:
            raise RuntimeError(f"the operator does not know what a replica sustains: {seen}")
        time.sleep(1)
    print(f"   operator: {rate:.3g} requests/s expected, one replica sustains {each:.3g}, so {need:.1f} are needed")
    return each


def burst(watch: Watch, slo: Slo, client_image: str) -> None:
    """Send more and more traffic, until the operator has ordered a second replica.

    Raises:
        RuntimeError: it has not.
    """
    for share in STEPS:
        traffic(watch, slo, share * sustained(), client_image)
        if watch.most_ready > 1:
            return
    raise RuntimeError("the burst was too small to need a second replica")


def settle(watch: Watch) -> None:
    """Watch until the service is back to one idle replica."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        seen = watch.update()
        if seen.replicas == seen.ready_replicas == 1 and seen.waiting_requests == seen.running_requests == 0:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"the service has not settled after {SETTLE_SECONDS} s: {seen}")
        time.sleep(1)


def show_same_process(before: Pod, config_before: dict[str, Any]) -> None:
    """Say, from the pod itself, that its limits changed while it ran.

    Raises:
        RuntimeError: the pod is another one, restarted, or took no change of its limits.
    """
    after = next((pod for pod in CHAT.pods() if pod.uid == before.uid), None)
    if after is None or after.restarts != before.restarts:
        raise RuntimeError(f"pod {before.name} did not live through the burst: {after}")
    config = CHAT.runtime_config(after.name)
    if config["revision"] == config_before["revision"]:
        raise RuntimeError(f"pod {after.name} took no change of its limits")
    print(f"   pod {after.name}: uid {after.uid}, restarts {after.restarts}")
    for key in ("revision", "max_num_seqs", "max_num_batched_tokens"):
        print(f"   {key:22}  {config_before[key]} -> {config[key]}")


def demo() -> int:
    """The whole demo."""
    started = time.monotonic()
    with section(1, "A Kubernetes on this machine, the two images, the operator"):
        client_image = install(lambda line: print(f"   {line}", flush=True))
    with section(2, "Apply an InferenceService and wait until it is Ready"):
        remove_former()
        pod = apply_and_wait()
        config = CHAT.runtime_config(pod.name)
    with section(3, "Ask it something"):
        chat(client_image)
    with section(4, "Light traffic: one replica serves it with room"):
        slo = slo_of(CHAT)
        watch = Watch(CHAT, slo)
        traffic(watch, slo, LIGHT_RATE, client_image)
        print(f"   {watch.most_ready} replica{'s' * (watch.most_ready != 1)} at most")
    with section(5, "A burst that grows until one replica is not enough: watch it scale and tune"):
        burst(watch, slo, client_image)
    with section(6, "After the burst it settles back"):
        settle(watch)
        print(f"   at most: {watch.most_queued} queued, KV {watch.most_kv:.0%}, {watch.most_ready} replicas ready")
    with section(7, "The first pod: the same process all along, with other limits"):
        show_same_process(pod, config)
    print(f"\nDone in {time.monotonic() - started:.0f} s. To look further:\n")
    print(f"   export KUBECONFIG={kubeconfig_path()}")
    print(f"   export PATH={REPOSITORY / '.venv/bin'}:$PATH")
    print("   kubectl get ifsvc chat -o wide          # and -o yaml: status.decisions, status.conditions")
    print("   kubectl port-forward svc/chat 8080:80   # then: curl localhost:8080/metrics, localhost:8080/v1/models")
    print("   kubectl -n inflight-system logs deploy/inflight-operator")
    print("\nTo remove all of it: make demo-down. Built programs and images stay, so that the next start is short;")
    print("`.venv/bin/python -m tools.localcluster down --purge` deletes these too.")
    return 0


def main() -> int:
    """Exit 0 when all of it worked, 1 with a sentence when something did not."""
    parser = argparse.ArgumentParser(prog="python -m tools.demo", description=demo.__doc__)
    parser.parse_args()
    stopped = "\nstopped; `make demo` goes on where it was, `make demo-down` removes everything"
    return exit_code(demo, ClusterError, RuntimeError, TimeoutError, stopped=stopped)


if __name__ == "__main__":
    sys.exit(main())
