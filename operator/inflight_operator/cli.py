"""The command `inflight-operator`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import uvloop

from inflight_base import logs
from inflight_base.kube.connect import ConnectError
from inflight_base.kube.errors import KubeApiError
from inflight_base.manifest.names import DEFAULT_CLASS
from inflight_operator import flag_types
from inflight_operator.keys import KEY_SECRET_NAME
from inflight_operator.leader import LEASE_NAME
from inflight_operator.reconcile.upgrades import SERVICES_AT_ONCE, STUCK_SERVICES, UpgradeMode
from inflight_operator.recording.recorder import DEFAULT_MEBIBYTES
from inflight_operator.render.plan import VLLM_IMAGE, EngineObservability, ModelCache
from inflight_operator.runtime import Options, run_operator
from inflight_settings.flag_types import size

EXAMPLE = """\
example, from outside a cluster:
  inflight-operator run --kubeconfig ~/.kube/config --engine-image localhost/inflight-engine:dev --no-leader-elect

exit codes: 0 ended by SIGTERM or SIGINT, 1 could not start or lost its Lease, 2 wrong usage
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    arguments = build_parser().parse_args(argv)
    if arguments.command == "export-vllm-plugin":
        return _export_plugin(arguments.folder)
    logs.configure("inflight_operator", arguments.log_format, arguments.log_level)
    options = Options(
        kubeconfig=arguments.kubeconfig,
        namespaces=tuple(dict.fromkeys(arguments.namespace)),
        class_name=arguments.class_name,
        leader_elect=arguments.leader_elect,
        lease_name=arguments.lease_name,
        key_secret=arguments.key_secret,
        gateway_service=arguments.gateway_service,
        endpoint_picker=arguments.gateway_endpoint_picker,
        metrics_port=arguments.metrics_port,
        metrics_authentication=arguments.metrics_authentication,
        engine_image=arguments.engine_image,
        engine_pull_policy=arguments.engine_image_pull_policy,
        vllm_image=arguments.vllm_image,
        plugin_image=arguments.plugin_image,
        interval=arguments.interval,
        admin_peers=arguments.admin_peers,
        client_peers=arguments.client_peers,
        upgrade=arguments.engine_upgrade,
        upgrades_at_once=arguments.engine_upgrades_at_once,
        upgrades_stuck=arguments.engine_upgrade_stuck_services,
        record_decisions=arguments.record_decisions,
        record_services=tuple(arguments.record_service),
        record_size=arguments.record_size,
        observability=EngineObservability(
            traces_endpoint=arguments.engine_traces_endpoint,
            sampling_ratio=arguments.engine_traces_sampling_ratio,
            log_format=arguments.engine_log_format,
            access_log=arguments.engine_access_log,
        ),
        model_cache=_model_cache(arguments),
    )
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_until_signal(options))
    except (ConnectError, KubeApiError, OSError) as error:
        if arguments.log_format == "json":
            logging.getLogger("inflight_operator").critical("%s", error)
        else:
            print(f"error: {error}", file=sys.stderr)
        return 1


async def _until_signal(options: Options) -> int:
    """Shuts down gracefully on a signal before the watches run; after that kopf handles signals."""
    this, signalled = asyncio.current_task(), False

    def end() -> None:
        nonlocal signalled
        signalled = True
        if this is not None:
            this.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end)
    try:
        return await run_operator(options)
    except asyncio.CancelledError:
        if not signalled:
            raise
        return 0


def _model_cache(arguments: argparse.Namespace) -> ModelCache | None:
    if not (arguments.model_cache_claim or arguments.model_cache_host_path):
        return None
    return ModelCache(
        claim=arguments.model_cache_claim,
        host_path=arguments.model_cache_host_path,
        size=arguments.model_cache_size,
        namespaces=frozenset(arguments.model_cache_namespace),
    )


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="inflight-operator",
        description="Reconciles InferenceServices: replicas, limits of running engines, status.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="run the operator",
        description="Runs the operator until SIGTERM or SIGINT.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument(
        "--engine-image", required=True, metavar="IMAGE", help="engine image of services without spec.engine.image"
    )
    run.add_argument(
        "--vllm-image",
        default=VLLM_IMAGE,
        metavar="IMAGE",
        help=f"image of services of spec.engine.type vllm without spec.engine.image (default: {VLLM_IMAGE})",
    )
    run.add_argument(
        "--plugin-image",
        default="",
        metavar="IMAGE",
        help="this program's own image, from which pods of spec.engine.type vllm copy Inflight's plugin for vLLM"
        " (default: none, and such pods need spec.engine.plugin false)",
    )
    run.add_argument(
        "--engine-image-pull-policy",
        default="",
        choices=["Always", "IfNotPresent", "Never"],
        help="when nodes pull the image of engine pods (default: Always for the tag latest, else IfNotPresent)",
    )
    run.add_argument("--kubeconfig", metavar="FILE", help="kubeconfig (default: the service account of the pod)")
    run.add_argument(
        "--namespace",
        action="append",
        default=[],
        metavar="NAME",
        help="serve this namespace only; repeat it for several (default: all)",
    )
    run.add_argument(
        "--class-name",
        type=flag_types.service_class,
        default=DEFAULT_CLASS,
        metavar="NAME",
        help="act only on services of this class, as spec.className has it: several operators may then share a cluster"
        f" (default: {DEFAULT_CLASS})",
    )
    run.add_argument(
        "--leader-elect",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="act only while holding a Lease, so that other operators can take over",
    )
    run.add_argument(
        "--lease-name", default=LEASE_NAME, metavar="NAME", help=f"name of the Lease (default: {LEASE_NAME})"
    )
    run.add_argument(
        "--key-secret",
        default=KEY_SECRET_NAME,
        metavar="NAME",
        help="Secret in the operator's own namespace with the key of the engines' admin tokens; created when it is"
        f" missing (default: {KEY_SECRET_NAME})",
    )
    run.add_argument(
        "--gateway-service",
        type=flag_types.gateway_service,
        default="",
        metavar="HOST",
        help="full DNS name of the gateway's Service, such as inflight-gateway.inflight-system.svc.cluster.local; with"
        " it, services with spec.gateway.enabled are behind the gateway (default: no service is)",
    )
    run.add_argument(
        "--gateway-endpoint-picker",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="the gateway runs with --ext-proc-port: services with spec.gateway.inferencePool get an InferencePool"
        " where the cluster has that API",
    )
    run.add_argument(
        "--metrics-port",
        type=flag_types.port,
        default=8080,
        metavar="PORT",
        help="port of /metrics and /healthz (default: 8080)",
    )
    run.add_argument(
        "--metrics-authentication",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="answer /metrics only with a bearer token of an account that may get this path, by the API server's"
        " TokenReview and SubjectAccessReview",
    )
    run.add_argument(
        "--interval",
        type=flag_types.interval,
        default=3.0,
        metavar="SECONDS",
        help="time between two rounds of a service (default: 3)",
    )
    run.add_argument(
        "--admin-peers",
        type=flag_types.peers,
        default=(),
        metavar="JSON",
        help="list of NetworkPolicyPeers that may reach the engines' admin port beside the operator, such as a"
        " Prometheus that scrapes it",
    )
    run.add_argument(
        "--client-peers",
        type=flag_types.peers,
        default=(),
        metavar="JSON",
        help="list of NetworkPolicyPeers that may connect to the serving port of services without"
        " spec.networkPolicy.from (default: the pods of their namespace may)",
    )
    cache = run.add_mutually_exclusive_group()
    cache.add_argument(
        "--model-cache-claim",
        type=flag_types.claim,
        default="",
        metavar="NAME",
        help="PersistentVolumeClaim in the namespace of each service with the models that its engines share",
    )
    cache.add_argument(
        "--model-cache-host-path",
        type=flag_types.host_path,
        default="",
        metavar="FOLDER",
        help="folder of each node with the models that engines share, in a folder for each namespace",
    )
    run.add_argument(
        "--model-cache-size",
        type=size,
        default="100Gi",
        metavar="SIZE",
        help="most bytes of the models that engines of a namespace share (default: 100Gi)",
    )
    run.add_argument(
        "--model-cache-namespace",
        action="append",
        default=[],
        metavar="NAMESPACE",
        help="a namespace whose engines share models; may be repeated (default: all)",
    )
    run.add_argument(
        "--engine-upgrade",
        choices=get_args(UpgradeMode),
        default="Paced",
        help="how running services move to a newer engine release: Paced: some at a time, each only when the last ones"
        " are Ready; AtOnce: all together; Held: none, until the spec of a service changes (default: Paced)",
    )
    run.add_argument(
        "--engine-upgrades-at-once",
        type=flag_types.share_above_zero,
        default=SERVICES_AT_ONCE,
        metavar="N",
        help="services that move at the same time, with --engine-upgrade Paced: a number, or a percentage of all"
        " services such as 10%%, rounded up (default: 1)",
    )
    run.add_argument(
        "--engine-upgrade-stuck-services",
        type=flag_types.share,
        default=STUCK_SERVICES,
        metavar="N",
        help="services that may be stuck in their move, with --engine-upgrade Paced, before no further one moves: a"
        " number, or a percentage of all services, rounded up (default: 10%%)",
    )
    run.add_argument(
        "--record-decisions",
        type=Path,
        metavar="FOLDER",
        help="record inputs and result of each decision, for `inflight-simulate replay-decisions`",
    )
    run.add_argument(
        "--record-service",
        action="append",
        default=[],
        type=flag_types.service,
        metavar="NAMESPACE/NAME",
        help="record this service only; repeat it for several (default: all)",
    )
    run.add_argument(
        "--record-size",
        type=flag_types.positive,
        default=DEFAULT_MEBIBYTES,
        metavar="MIB",
        help=f"most disk space of the recording; the oldest file is deleted first (default: {DEFAULT_MEBIBYTES})",
    )
    run.add_argument("--log-format", choices=logs.FORMATS, default="text", help="format of log lines (default: text)")
    run.add_argument(
        "--log-level", choices=logs.LEVELS, default="info", help="lowest level of log lines (default: info)"
    )
    run.add_argument(
        "--engine-traces-endpoint",
        type=flag_types.collector,
        default="",
        metavar="URL",
        help="OpenTelemetry collector (OTLP over HTTP) of engines whose service names none in spec.engine.tracing;"
        " running services move to a change as --engine-upgrade says (default: no traces)",
    )
    run.add_argument(
        "--engine-traces-sampling-ratio",
        type=flag_types.ratio,
        default=1.0,
        metavar="RATIO",
        help="share of engine requests that are traced, 0 to 1 (default: 1)",
    )
    run.add_argument(
        "--engine-log-format",
        choices=logs.FORMATS,
        default="text",
        help="log format of engines whose service sets none in spec.engine.logs (default: text)",
    )
    run.add_argument(
        "--engine-access-log",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="a log line for each request of engines whose service does not set it in spec.engine.logs",
    )
    export = commands.add_parser(
        "export-vllm-plugin",
        help="copy Inflight's plugin for vLLM into a folder",
        description="Copies Inflight's plugin for vLLM, with all that it imports and vLLM's image lacks, into a folder"
        " for PYTHONPATH. Pods of spec.engine.type vllm run it before vLLM starts.",
    )
    export.add_argument("folder", type=Path, metavar="FOLDER", help="folder to write to; created when it is missing")
    return parser


def _export_plugin(folder: Path) -> int:
    # Imported here: the operator itself does not need it.
    from inflight_vllm.export import export

    try:
        export(folder)
    except OSError as error:
        print(f"error: the plugin cannot be copied: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
