"""The command `inflight-operator`."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import uvloop

from inflight_operator.admin_key import KEY_SECRET_NAME
from inflight_operator.apply.kube import KubeApiError
from inflight_operator.connect import ConnectError
from inflight_operator.leader import LEASE_NAME
from inflight_operator.reconcile.upgrades import UpgradeMode
from inflight_operator.recording.recorder import DEFAULT_MEBIBYTES
from inflight_operator.render import Manifest
from inflight_operator.runtime import Options, run_operator

EXAMPLE = """\
example, from outside a cluster:
  inflight-operator run --kubeconfig ~/.kube/config --engine-image localhost/inflight-engine:dev --no-leader-elect

exit codes: 0 ended by SIGTERM or SIGINT, 1 it could not start or lost its Lease, 2 wrong usage
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for chatty in ("kopf", "kubernetes"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    options = Options(
        kubeconfig=arguments.kubeconfig,
        namespaces=tuple(dict.fromkeys(arguments.namespace)),
        leader_elect=arguments.leader_elect,
        lease_name=arguments.lease_name,
        key_secret=arguments.key_secret,
        metrics_port=arguments.metrics_port,
        engine_image=arguments.engine_image,
        engine_pull_policy=arguments.engine_image_pull_policy,
        interval=arguments.interval,
        admin_peers=arguments.admin_peers,
        upgrade=arguments.engine_upgrade,
        upgrades_at_once=arguments.engine_upgrades_at_once,
        record_decisions=arguments.record_decisions,
        record_services=tuple(arguments.record_service),
        record_size=arguments.record_size,
    )
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_until_told(options))
    except (ConnectError, KubeApiError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


async def _until_told(options: Options) -> int:
    """Ends in order on a signal also before the watches run; from then on kopf handles signals."""
    this, told = asyncio.current_task(), False

    def end() -> None:
        nonlocal told
        told = True
        if this is not None:
            this.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end)
    try:
        return await run_operator(options)
    except asyncio.CancelledError:
        if not told:
            raise
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="inflight-operator",
        description="Keeps InferenceServices what their specs say: replicas, limits of running engines, status.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="run the operator until it is told to stop",
        description="Runs the operator until SIGTERM or SIGINT.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("--engine-image", required=True, metavar="IMAGE", help="image of services whose spec names none")
    run.add_argument("--kubeconfig", metavar="FILE", help="default: the service account of the pod it runs in")
    run.add_argument(
        "--engine-image-pull-policy",
        default="",
        choices=["Always", "IfNotPresent", "Never"],
        help="when nodes pull the image of engine pods (default: Always for the tag latest, else IfNotPresent)",
    )
    run.add_argument(
        "--namespace",
        action="append",
        default=[],
        metavar="NAME",
        help="look after this namespace only; give it several times for several (default: all)",
    )
    run.add_argument(
        "--leader-elect",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="act only while holding a Lease, so that several operators can stand by",
    )
    run.add_argument("--lease-name", default=LEASE_NAME, metavar="NAME", help=f"of that Lease (default: {LEASE_NAME})")
    run.add_argument(
        "--key-secret",
        default=KEY_SECRET_NAME,
        metavar="NAME",
        help="Secret in the operator's own namespace with the key of the engines' admin tokens; created when it is"
        f" missing (default: {KEY_SECRET_NAME})",
    )
    run.add_argument(
        "--metrics-port", type=_port, default=8080, metavar="PORT", help="for /metrics and /healthz (default: 8080)"
    )
    run.add_argument(
        "--interval", type=_interval, default=3.0, metavar="SECONDS", help="between two looks at a service (default: 3)"
    )
    run.add_argument(
        "--admin-peers",
        type=_peers,
        default=(),
        metavar="JSON",
        help="list of NetworkPolicyPeers that may reach the engines' admin port beside the operator, such as a"
        " Prometheus that scrapes it",
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
        type=_positive,
        default=1,
        metavar="N",
        help="services that move at the same time, with --engine-upgrade Paced (default: 1)",
    )
    run.add_argument(
        "--record-decisions",
        type=Path,
        metavar="FOLDER",
        help="record what each decision saw and what it gave, for `inflight-simulate replay-decisions`",
    )
    run.add_argument(
        "--record-service",
        action="append",
        default=[],
        type=_service,
        metavar="NAMESPACE/NAME",
        help="record this service only; give it several times for several (default: all)",
    )
    run.add_argument(
        "--record-size",
        type=_positive,
        default=DEFAULT_MEBIBYTES,
        metavar="MIB",
        help=f"most disk space of the recording; the oldest file goes first (default: {DEFAULT_MEBIBYTES})",
    )
    return parser


def _peers(text: str) -> tuple[Manifest, ...]:
    try:
        peers = json.loads(text)
    except ValueError:
        peers = None
    if not isinstance(peers, list) or not all(isinstance(peer, dict) for peer in peers):
        raise argparse.ArgumentTypeError("it must be a JSON list of NetworkPolicyPeer objects")
    return tuple(peers)


def _service(text: str) -> str:
    namespace, _, name = text.partition("/")
    if not namespace or not name or "/" in name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAMESPACE/NAME")
    return text


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: give 1 to 65535, or 0 for a free one")
    return int(text)


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.5 <= seconds <= 60:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.5 to 60")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
