"""`record SERVICE`: fetches the recording of the operator's decisions on a service, or of an engine's scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import click

from inflight_base.kube.kinds import object_path
from inflight_base.manifest.names import ENGINE_CONTAINER
from inflight_base.recording import compressor, packed
from inflight_kubectl.access.cluster import Cluster, Json, Target, cluster_options, service_argument
from inflight_kubectl.access.resources import Service
from inflight_kubectl.engines.recordings import Header, parts_of
from inflight_kubectl.output import Problem, json_option, print_json

OPERATOR_CONTAINER = "operator"


@dataclass(frozen=True, slots=True)
class Fetched:
    """Attributes:
    rounds: number of rounds of the service; None for an engine's recording.
    left_out: files of another operator version, which one program cannot replay together.
    """

    file: str
    pod: str
    bytes: int
    rounds: int | None
    left_out: int


@click.command(
    "record",
    epilog="""\b
Examples:
  kubectl inflight record chat                          # decisions on chat, into chat-decisions.zst
  kubectl inflight record chat -o incident.zst
  kubectl inflight record chat --engine                 # what an engine scheduled, into chat-engine.jsonl.gz
  kubectl inflight replay chat-decisions.zst
""",
)
@service_argument
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Where the recording goes."
)
@click.option("--engine", is_flag=True, help="Fetch the recording of an engine in place of the operator's.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@json_option
@cluster_options()
def record(service: str, output: Path | None, engine: bool, force: bool, as_json: bool, target: Target) -> None:
    """Fetch what was recorded of SERVICE into a file.

    The operator records its decisions where the chart's value recordDecisions.enabled is set, and engines their
    scheduler's where engine.extraArgs has --record. The file holds the spec of the service with the values of its
    environment variables, and no tokens; an engine's holds no prompts and no outputs.
    """
    path = output or Path(f"{service}-engine.jsonl.gz" if engine else f"{service}-decisions.zst")
    if path.exists() and not force:
        raise Problem(f"{path} exists", "Choose another file with -o, or overwrite it with --force")
    cluster = target.connect()
    found = cluster.service(service)
    part = path.with_name(f"{path.name}.part")
    try:
        fetched = _from_engine(cluster, found, part) if engine else _from_operator(cluster, found, part)
        part.replace(path)
    except OSError as error:
        raise Problem(f"cannot write {path}: {error.strerror or error}", "Choose another file with -o") from error
    finally:
        part.unlink(missing_ok=True)
    fetched = replace(fetched, file=str(path))
    if as_json:
        print_json(fetched)
        return
    rounds = f"{fetched.rounds} rounds, " if fetched.rounds is not None else ""
    click.echo(f"{fetched.file}: {rounds}{fetched.bytes / 1024:.0f} KiB, from pod {fetched.pod}")
    if fetched.left_out:
        click.echo(f"left out: {fetched.left_out} older files, which another version of the operator wrote")
    click.echo(f"Replay it: kubectl inflight replay {fetched.file}")


COMMAND = record


def _from_operator(cluster: Cluster, service: Service, path: Path) -> Fetched:
    from inflight_kubectl.access.operators import arguments, operators

    key = f"{service.namespace}/{service.name}"
    found = operators(cluster)
    if not found:
        raise Problem("the operator is not installed in this cluster", "Run `kubectl inflight doctor`")
    recording = [one for one in found if _folder(arguments(one)) is not None]
    if not recording:
        raise _off(found[0], key)
    deployment = recording[0]
    given = arguments(deployment)
    only = [one.partition("=")[2] for one in given if one.startswith("--record-service=")]
    if only and key not in only:
        raise _off(deployment, ",".join([*only, key]))
    namespace, folder = deployment["metadata"]["namespace"], _folder(given)
    pod = _leader(cluster, deployment)

    def run(*command: str) -> Iterator[bytes]:
        from inflight_kubectl.access.remote import output_of

        return output_of(cluster.connection, namespace, pod, OPERATOR_CONTAINER, *command)

    names = sorted(b"".join(run("ls", str(folder))).decode().split())
    files = [parts_of(run("cat", f"{folder}/{name}")) for name in names if name.startswith("decisions-")]
    rounds, left_out = _write_rounds(path, files, key)
    if not rounds:
        raise Problem(f"the recording in {pod} has no round of {key} yet", "Try again in a few seconds")
    return Fetched(str(path), pod, path.stat().st_size, rounds, left_out)


def _write_rounds(path: Path, files: list[Iterator[tuple[str, bytes]]], service: str) -> tuple[int, int]:
    """Writes the rounds of a service from files, oldest first; files whose header differs from the newest are skipped.

    Returns:
        Rounds written, and files skipped.
    """
    begun = [(Header.of(first[1]), parts) for parts in files if (first := next(parts, None)) is not None]
    headers = [header for header, _ in begun if header is not None]
    if not headers:
        return 0, 0
    newest = headers[-1]
    same = [parts for header, parts in begun if header is not None and header.identity == newest.identity]
    rounds, packer = 0, compressor()
    with path.open("wb") as out:
        out.write(packer.compress(newest.text))
        for parts in same:
            for name, message in parts:
                if name == service:
                    out.write(packer.compress(packed(name, message)))
                    rounds += 1
        out.write(packer.flush())
    return rounds, len(begun) - len(same)


def _leader(cluster: Cluster, deployment: Json) -> str:
    """Returns the name of the leader's pod, which records: the holder of the Lease."""
    from inflight_kubectl.access.operators import OPERATOR_SELECTOR, lease_path

    namespace, path = deployment["metadata"]["namespace"], lease_path(deployment)
    if path is not None:
        lease = cluster.get(path)
        holder = ((lease or {}).get("spec") or {}).get("holderIdentity")
        if not holder:
            raise Problem("no pod of the operator leads now", "Run `kubectl inflight doctor`")
        return str(holder)
    pods = cluster.list(object_path("Pod", namespace), labelSelector=OPERATOR_SELECTOR)["items"]
    running = [one["metadata"]["name"] for one in pods if one.get("status", {}).get("phase") == "Running"]
    if not running:
        raise Problem("no pod of the operator runs", "Run `kubectl inflight doctor`")
    return str(running[0])


def _folder(arguments: list[str]) -> str | None:
    return next((one.partition("=")[2] for one in arguments if one.startswith("--record-decisions=")), None)


def _off(deployment: Json, services: str) -> Problem:
    from inflight_kubectl.access.operators import upgrade_command

    options = ("--set recordDecisions.enabled=true", f"--set 'recordDecisions.services={{{services}}}'")
    return Problem(
        f"the operator does not record decisions on {services.rpartition(',')[2]}",
        f"Turn it on: {upgrade_command(deployment, *options)}",
    )


def _from_engine(cluster: Cluster, service: Service, path: Path) -> Fetched:
    from inflight_kubectl.access.remote import output_of

    pods = [pod for pod in cluster.pods(service) if pod.serves]
    if not pods:
        raise Problem(f"{service.name} has no ready pod", f"See `kubectl inflight why {service.name}`")
    extra = [str(one) for one in (service.spec.get("engine") or {}).get("extraArgs") or ()]
    recorded = _flag(extra, "--record")
    if recorded is None:
        raise Problem(
            f"the engines of {service.name} do not record",
            "Turn it on, which rolls out new pods: set spec.engine.extraArgs to [--record, /tmp/run.jsonl.gz]",
        )
    pod = pods[0]
    with path.open("wb") as out:
        for chunk in output_of(
            cluster.connection, pod.namespace, pod.name, ENGINE_CONTAINER, "cat", str(PurePosixPath(recorded))
        ):
            out.write(chunk)
    return Fetched(str(path), pod.name, path.stat().st_size, None, 0)


def _flag(arguments: list[str], name: str) -> str | None:
    """Returns the value of a flag, given as one word or as two."""
    for number, one in enumerate(arguments):
        if one.startswith(f"{name}="):
            return one.partition("=")[2]
        if one == name and number + 1 < len(arguments):
            return arguments[number + 1]
    return None
