"""The command `inflight-gateway`."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from inflight_base import logs
from inflight_gateway import flags
from inflight_gateway.settings import LINK_PORT, RUN_DIR, EnvoySettings, PickerSettings, Sockets

EXAMPLE = """\
example, on a laptop, with an engine at 127.0.0.1:8000 and each program in a terminal of its own:
  cat > services.yaml <<END
  services: [{name: chat, model: smollm2, endpoints: ["127.0.0.1:8000"]}]
  END
  inflight-gateway picker --run-dir /tmp/gateway --static services.yaml
  inflight-gateway relay --run-dir /tmp/gateway
  inflight-gateway envoy-config --run-dir /tmp/gateway --output /tmp/gateway/envoy.json
  envoy -c /tmp/gateway/envoy.json
  curl -H 'Host: chat.default' http://127.0.0.1:8080/v1/models

exit codes: 0 ended by SIGTERM or SIGINT, 1 could not start, 2 wrong usage
"""


class _StartError(Exception):
    """The command cannot start; the message is shown without a stack trace."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.command == "envoy-config":
        try:
            return _envoy_config(flags.envoy_settings(arguments), arguments.output)
        except ValueError as error:
            parser.error(str(error))
    logs.configure("inflight_gateway", arguments.log_format, arguments.log_level)
    try:
        return _picker(arguments) if arguments.command == "picker" else _relay(arguments)
    except (_StartError, OSError) as error:
        if arguments.log_format == "json":
            logging.getLogger("inflight_gateway").critical("%s", error)
        else:
            print(f"error: {error}", file=sys.stderr)
        return 1


def _envoy_config(settings: EnvoySettings, output: Path | None) -> int:
    from inflight_gateway.proxy.config import configuration
    from inflight_gateway.proxy.tls import certificate

    secret = (output or settings.sockets.run_dir / "envoy.json").with_name("certificate.json")
    text = json.dumps(configuration(settings, secret), indent=2) + "\n"
    if output is None:
        sys.stdout.write(text)
        return 0
    if settings.tls_dir is not None:
        secret.write_text(json.dumps(certificate(settings.tls_dir)))
    output.write_text(text)
    return 0


def _picker(arguments: argparse.Namespace) -> int:
    # The relay runs in separate processes and needs neither gRPC nor Kubernetes: this saves 60 MiB for each.
    from inflight_gateway.discovery.static import StaticFileError
    from inflight_gateway.runtime import StartError, run_picker

    settings = PickerSettings(
        sockets=Sockets(arguments.run_dir),
        static=arguments.static,
        kubeconfig=arguments.kubeconfig,
        namespaces=tuple(dict.fromkeys(arguments.namespace)),
        class_name=arguments.class_name,
        http_port=arguments.http_port,
        cluster_domain=arguments.cluster_domain,
        peers=arguments.peers,
        link_port=arguments.link_port if arguments.link_port is not None or not arguments.peers else LINK_PORT,
        gateway_key_file=arguments.gateway_key_file,
        drain_min_s=arguments.drain_min,
        drain_max_s=arguments.drain_max,
        access_log=arguments.access_log,
        name=arguments.name,
        ext_proc_port=arguments.ext_proc_port,
        ext_proc_tls=arguments.ext_proc_tls,
        model_namespaces=tuple(dict.fromkeys(arguments.model_namespace)),
        usage_dir=arguments.usage_dir,
        local_port=arguments.local_port,
        service=arguments.service,
    )

    async def until_signal() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        try:
            await run_picker(settings, stop)
        except* (StartError, StaticFileError, OSError) as errors:
            raise _StartError(str(_first(errors))) from errors

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(until_signal())
    return 0


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    inner: BaseException = errors
    while isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]
    return inner


def _relay(arguments: argparse.Namespace) -> int:
    from inflight_gateway.relay import run

    sockets = Sockets(arguments.run_dir)
    sockets.run_dir.mkdir(parents=True, exist_ok=True)
    run.main(sockets, arguments.processes, arguments.drain_max)
    return 0


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="inflight-gateway",
        description="The gateway behind Envoy: picks a replica for each request, holds requests, continues answers.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    picker = _command(
        commands,
        "picker",
        "run the picker",
        "Picks replicas for the requests that relays have, until SIGTERM or SIGINT; then drains.",
    )
    flags.picker(picker)
    flags.process(picker)
    relay = _command(
        commands,
        "relay",
        "run the relay",
        "Checks API keys, sends requests from Envoy to engines, and continues answers at another engine. Runs until"
        " SIGTERM or SIGINT.",
    )
    relay.add_argument(
        "--processes",
        type=flags.count,
        default=1,
        metavar="N",
        help="relay processes, as --relays of envoy-config; they divide the 256 MiB that bodies of requests in flight"
        " may have, but each may keep one of 32 MiB (default: 1)",
    )
    flags.process(relay)
    envoy = _command(
        commands,
        "envoy-config",
        "print Envoy's configuration",
        "Prints the file for `envoy -c`, as JSON.",
    )
    flags.envoy(envoy)
    for command in (picker, relay, envoy):
        command.add_argument(
            "--run-dir",
            type=Path,
            default=RUN_DIR,
            metavar="FOLDER",
            help=f"UNIX sockets of Envoy, relays and picker are there (default: {RUN_DIR})",
        )
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, help_: str, description: str
) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=help_,
        description=description,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


if __name__ == "__main__":
    sys.exit(main())
