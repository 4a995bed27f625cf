"""`python -m e2e.storm`: wakes many services at zero replicas at the same moment, and shows the result."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from e2e.disruptions.stage import node_problem
from e2e.storm.account import Storm, storm_of
from e2e.storm.watch import Watch, watching
from tools.localcluster import ClusterError, kubectl
from tools.localcluster.progress import Progress, to_stdout
from tools.measure.report import write_json
from tools.signals import exit_code, exit_on_signals
from tools.testbed.install import install
from tools.testbed.load_pod import program_pod
from tools.testbed.namespaces import temporary_namespace
from tools.testbed.service import Service

NAMESPACE = "e2e-storm"

ASLEEP_SECONDS = 300

DESCRIPTION = f"""Wakes many services at zero replicas: requests to each come at the same moment, through the gateway.

Every request must be answered, or refused cleanly (503 with Retry-After, which the clients obey) until its patience is
over. Real engines with the built-in model start for all of them; as many as the memory of the node takes run at the
same time, and the pods of the others wait to be scheduled, while the gateway holds their requests up to --max-wait.
Services that were answered go back to zero after 10 s without a request, and make room.

Brings cluster and chart up where they are not. The namespace {NAMESPACE} is deleted at the end."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    line = argparse.ArgumentParser(
        prog="python -m e2e.storm",
        description=DESCRIPTION,
        epilog="exit code: 0 every request was answered or refused cleanly, 1 one was not\n\n"
        "example: python -m e2e.storm --services 50 --json storm.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    line.add_argument("--services", type=int, default=50, help="services at zero replicas (default 50)")
    line.add_argument("--requests", type=int, default=1, help="requests to each of them (default 1)")
    line.add_argument("--max-wait", type=int, default=300, help="gateway.hold.maxWait, seconds (default 300)")
    line.add_argument("--patience", type=int, default=900, help="of a client, seconds, refusals included (default 900)")
    line.add_argument(
        "--engine-memory",
        default="1Gi",
        help="memory request of an engine, which decides how many run at the same time (default 1Gi)",
    )
    line.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    return line


def manifest(number: int, options: argparse.Namespace, *, asleep: bool) -> dict[str, Any]:
    """A service. `asleep`: it may scale between zero and one; else it is kept at zero.

    A new service starts a replica once, so that its image and model are tried. Kept at zero at first, fifty services
    sleep without fifty starts before the storm.
    """
    scaling: dict[str, Any] = {"mode": "External"}
    replicas: dict[str, Any] = {"replicas": 0}
    if asleep:
        scaling, replicas = {"minReplicas": 0, "maxReplicas": 1, "idleTimeout": "10s"}, {}
    spec = {
        "model": {"source": "builtin://smollm2"},
        "accelerator": {"count": 0},
        "engine": {
            "quantization": "int8",
            "maxModelLen": 2048,
            "maxNumSeqs": 8,
            "maxNumBatchedTokens": 1024,
            "kvCache": {"memory": "64Mi"},
        },
        "gateway": {"enabled": True, "hold": {"maxWait": f"{options.max_wait}s"}},
        "rollout": {"startupTimeout": "30m"},
        "scaling": scaling,
        "tuning": {"mode": "Off"},
        # The CPU request is small: memory decides how many engines run, however slowly they start.
        "template": {"resources": {"requests": {"cpu": "10m", "memory": options.engine_memory}}},
        **replicas,
    }
    return Service(name_of(number), NAMESPACE).manifest(spec)


def name_of(number: int) -> str:
    """Returns the name of a service, as in the URL of the clients."""
    return f"sleeper-{number:02}"


def put_to_sleep(options: argparse.Namespace, say: Progress) -> None:
    """Brings all services to zero replicas, ready to wake.

    Raises:
        TimeoutError: one is not at zero or not ready.
    """
    say(f"{options.services} services at zero replicas")
    for asleep in (False, True):
        items = [manifest(number, options, asleep=asleep) for number in range(options.services)]
        kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        deadline = time.monotonic() + ASLEEP_SECONDS
        while (waiting := not_there(_services(), options.services, asleep=asleep)) is not None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {ASLEEP_SECONDS} s for services at zero replicas: {waiting}")
            time.sleep(1)


def not_there(services: list[dict[str, Any]], expected: int, *, asleep: bool) -> str | None:
    """Why the services are not all at zero replicas, and ready to wake if `asleep`; None when they are."""
    if len(services) < expected:
        return f"{len(services)} of {expected} exist"
    for service in services:
        status = service.get("status", {})
        conditions = {one["type"]: one for one in status.get("conditions", ())}
        ready = conditions.get("Ready", {})
        name = service["metadata"]["name"]
        if status.get("observedGeneration") != service["metadata"]["generation"] or status.get("replicas", 0):
            return f"{name} is not at zero: {ready.get('message', 'not seen by the operator yet')}"
        if asleep and (ready.get("status"), ready.get("reason")) != ("True", "Idle"):
            return f"{name} is not ready to wake: {ready.get('message')}"
    return None


def _services() -> list[dict[str, Any]]:
    listing = json.loads(kubectl("-n", NAMESPACE, "get", "inferenceservices", "-o", "json"))
    return list(listing["items"])


def storm(options: argparse.Namespace, image: str, say: Progress) -> Storm:
    """The requests, and their result."""
    say(f"{options.services * options.requests} requests at the same moment; up to {options.patience} s")
    watch = Watch(NAMESPACE)
    arguments = [
        f"--url=http://sleeper-{{}}.{NAMESPACE}.svc",
        f"--services={options.services}",
        f"--requests={options.requests}",
        f"--patience={options.patience}",
    ]
    watch.update()  # before the requests: a replica that runs now is no order of the storm
    with (
        program_pod("storm", arguments, name="storm", image=image, namespace=NAMESPACE) as pod,
        watching(watch),
    ):
        output = "".join(_with_progress(pod.follow(), say))
    return storm_of(output, options.services, watch.ordered, watch.memory)


def _with_progress(pieces: Iterator[str], say: Progress) -> Iterator[str]:
    """Yields the same pieces; reports how many requests have ended."""
    ended = 0
    for piece in pieces:
        if found := piece.count('"outcome"'):
            ended += found
            say(f"  {ended} ended")
        yield piece


def run(options: argparse.Namespace) -> Storm:
    """The storm, in a namespace of its own that is gone afterwards."""
    say = to_stdout()
    if node_problem():
        raise ClusterError("a wake storm needs the local cluster's own node: it reads the memory of processes of pods")
    image = install(say)
    with temporary_namespace(NAMESPACE):
        put_to_sleep(options, say)
        return storm(options, image, say)


def main(arguments: list[str] | None = None) -> int:
    """Exit 0 when every request was answered or refused cleanly, else 1."""
    options = parser().parse_args(arguments)
    exit_on_signals()
    return exit_code(lambda: show(run(options), options.json), ClusterError, TimeoutError, ValueError)


def show(result: Storm, file: Path | None) -> int:
    """Print the figures and write them where a file was asked for; the exit code."""
    print("\n" + result.text(), flush=True)
    write_json(file, result.as_json())
    return 1 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main())
