"""The measurement, in a separate network namespace (`python -m tools.bench.operator` enters it)."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from time import monotonic

import aiohttp
from kubernetes.aio import client

from inflight_base.kube.client import KubeApi
from inflight_base.kube.connect import load_configuration
from inflight_base.kube.errors import KubeApiError
from inflight_base.manifest.keys import ServiceKey
from tools.bench.operator import changes, fleet, options
from tools.bench.operator.engines import engine_process
from tools.bench.operator.figures import Failover, Finding, PhaseFigures, Report, SetUp, lines
from tools.bench.operator.fleet import Fleet
from tools.bench.operator.operators import LEADER, NAMESPACE, SECOND, SECOND_NAMESPACE, STANDBY, Operator, Operators
from tools.bench.operator.options import MORE_PHASES, PHASES
from tools.bench.operator.phases import QUIET_SECONDS, Bench
from tools.bench.operator.plane import OPERATOR_USER, SECOND_USER, Plane, nodes, plane
from tools.bench.operator.readings import AuditLog
from tools.localcluster import ClusterError
from tools.localcluster.programs import kubectl_program
from tools.localcluster.progress import Progress, to_stdout
from tools.measure.report import cpu_model, write_json

CREATION_PATIENCE = 1800.0
SHOWN_EVERY = 10.0
MAX_RESTARTS = 5
CONTROL_PLANE = ("kube-apiserver", "etcd", "kube-controller-manager", "kube-scheduler", "kwok")


async def measure(chosen: argparse.Namespace, running: Plane, progress: Progress) -> Report:
    """Creates the fleet with an operator at work, then goes through the phases."""
    operators = Operators(running.processes, running.operator_kubeconfig, chosen.interval)
    second = replace(operators, kubeconfig=running.second_kubeconfig, namespace=SECOND_NAMESPACE)
    _prepare(running.admin_kubeconfig, chosen)
    async with (
        client.ApiClient(await load_configuration(str(running.admin_kubeconfig))) as connection,
        engine_process(running.processes.log("engines")) as engines,
        aiohttp.ClientSession() as http,
    ):
        api = KubeApi(connection, timeout_seconds=60)
        services = fleet.keys(chosen.services)
        seen = Fleet(api, engines)
        async with _in_background(seen):
            with ExitStack() as stack:
                for number in (LEADER, STANDBY, SECOND):
                    stack.callback(operators.stop, number)
                bench = Bench(
                    chosen,
                    api,
                    running.admin_kubeconfig,
                    services,
                    seen,
                    engines,
                    operators,
                    http,
                    AuditLog(running.audit_log),
                    {name: record.pid for name in CONTROL_PLANE if (record := running.processes.running(name))},
                    progress,
                )
                operator, set_up = await _create(bench, api)
                phases, failover, findings, failure = await _phases(bench, second, operator)
    machine = f"{cpu_model()}, {os.cpu_count()} cores for everything, Python {platform.python_version()}"
    return Report(machine, chosen.services, chosen.pods, chosen.interval, set_up, phases, failover, findings, failure)


async def _phases(
    bench: Bench, second: Operators, operator: Operator
) -> tuple[list[PhaseFigures], Failover | None, list[Finding], str]:
    """Measures the phases; returns their figures, and why the rest was not measured."""
    done: list[PhaseFigures] = []
    failover, findings = None, list[Finding]()
    try:
        for name in (each for each in (*PHASES, *MORE_PHASES) if each in bench.options.phases):
            match name:
                case "rest":
                    done.append(await bench.rest(operator))
                case "load":
                    done.append(await bench.load(operator))
                case "hung":
                    done.append(await bench.hung(operator))
                case "leader":
                    bench.progress("phase leader: starting an operator that stands by")
                    standby = bench.operators.start(STANDBY)
                    failover, operator = await bench.leader(operator, standby), standby
                    findings.append(failover.finding)
                case "burst":
                    done.append(await bench.burst(operator))
                case "create":
                    done.append(await bench.create(operator))
                case "rollout":
                    findings += await changes.rollout(bench)
                case "upgrade":
                    findings += await changes.upgrade(bench)
                case "classes":
                    findings += await changes.classes(bench, second)
    except (ClusterError, KubeApiError, RuntimeError) as error:
        return done, failover, findings, str(error)
    return done, failover, findings, ""


def _prepare(kubeconfig: Path, chosen: argparse.Namespace) -> None:
    """The CRD, the namespaces, the operator's rights and the nodes. Raises ClusterError."""
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": OPERATOR_USER},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
            for user in (OPERATOR_USER, SECOND_USER)
        ],
    }
    own = (NAMESPACE, SECOND_NAMESPACE)
    namespaces = fleet.with_namespaces([*fleet.keys(chosen.services), *(ServiceKey(name, "") for name in own)])
    items = {"apiVersion": "v1", "kind": "List", "items": [*namespaces, binding, *nodes(chosen.pods)]}
    kubectl_program.run(kubeconfig, ("create", "-f", str(fleet.CRD_FILE)))
    kubectl_program.run(kubeconfig, ("create", "-f", "-"), json.dumps(items))
    kubectl_program.run(kubeconfig, ("wait", "--for=condition=Established", "-f", str(fleet.CRD_FILE)))


async def _create(bench: Bench, api: KubeApi) -> tuple[Operator, SetUp]:
    """Creates the services with an operator at work and waits until all pods are Ready and the operator is quiet. An
    operator that ends, as one that loses its Lease does, is started again as its Deployment would.

    Raises:
        RuntimeError: not in time.
        ClusterError: the operator ended too often.
    """
    chosen, progress, operators = bench.options, bench.progress, bench.operators
    operator, restarts, start = operators.start(LEADER), 0, monotonic()
    progress(f"creating {chosen.services} services")
    await fleet.create_all(api, bench.services, chosen.pods_per_service)
    created = monotonic() - start
    progress(f"{chosen.services} services created")
    printed = monotonic()
    while bench.fleet.ready_pods < chosen.pods:
        await asyncio.sleep(0.5)
        if not operators.is_running(operator):
            if restarts == MAX_RESTARTS:
                raise operators.ended(operator.name)
            restarts += 1
            progress(f"{operator.name} ended; it is started again")
            operator = operators.start(LEADER)
        if monotonic() - printed > SHOWN_EVERY:
            printed = monotonic()
            progress(f"{bench.fleet.deployments} Deployments, {bench.fleet.ready_pods} of {chosen.pods} pods Ready")
        if monotonic() - start > CREATION_PATIENCE:
            raise RuntimeError(f"only {bench.fleet.ready_pods} of {chosen.pods} pods were Ready in time")
    pods_ready = monotonic() - start
    progress(f"{chosen.pods} pods Ready; waiting until the operator is quiet")
    settled = await bench.settled(max(chosen.seconds, 2 * QUIET_SECONDS))
    ready = await fleet.count_ready(api)
    progress(f"{ready} services Ready, operator {'still writes' if settled is None else 'quiet'}")
    return operator, SetUp(created, pods_ready, None if settled is None else settled - start, ready, restarts)


@asynccontextmanager
async def _in_background(seen: Fleet) -> AsyncIterator[None]:
    """The watches go on during the block; when one fails, so does the block."""
    try:
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(seen.watch())
            yield
            watching.cancel()
    except BaseExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from group


@contextmanager
def _state_folder(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="inflight-bench-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def main() -> int:
    chosen, progress = options.parse(None), to_stdout()
    # The operator and the fake engines hold a connection for each pod; a container's limit is the hard one as well.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # What runs is stopped in order in both cases, also where a shell has this process ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        with _state_folder(chosen.state) as folder, plane(folder, progress) as running:
            report = asyncio.run(measure(chosen, running, progress))
    except (ClusterError, KubeApiError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("stopped", file=sys.stderr)
        return 130
    print("\n" + "\n".join(lines(report)))
    write_json(chosen.json, asdict(report))
    problems = [*filter(None, [report.failure]), *(f"{one}: goal missed" for one in report.missed)]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
