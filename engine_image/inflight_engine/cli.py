"""The command `inflight-engine`."""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from tempfile import gettempdir
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from inflight_engine import logs
from inflight_engine import placement as placing
from inflight_engine.server.engine.process import EngineProcess

if TYPE_CHECKING:
    from inflight_engine.server.settings.config import ServerConfig

LISTEN_BACKLOG = 2048


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 1 the thing asked for failed (the last line says what), 2 wrong usage."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] != ["serve"]:
        return _run(arguments, None)
    # Until the server has its own handlers. As a container's first process, one without a handler would not end at all.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    # Where the processes of this server keep a remote model's small files, so that they read one version.
    os.environ["INFLIGHT_MODEL_FILES"] = f"{gettempdir()}/inflight-model-{os.getpid()}-{time.time_ns()}"
    # What the engine process imports takes longer than all that is done here, so it starts before anything is read.
    process = EngineProcess()
    try:
        return _run(arguments, process)
    finally:
        process.kill()
        _remove_model_files()


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    # Imported only now, as the engine process has been started.
    from inflight_engine.models import export
    from inflight_engine.models.remote import prefetch
    from inflight_engine.recording import command as replay
    from inflight_engine.server.settings.flags import DESCRIPTION, EXAMPLE, add_serve_flags

    parser = argparse.ArgumentParser(
        prog="inflight-engine",
        description="Serve a language model with continuous batching.",
        epilog="example: inflight-engine serve builtin://smollm2 --port 8000",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"inflight-engine {version('inflight')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary, description, example, add_flags in (
        ("serve", "serve one model over HTTP", DESCRIPTION, EXAMPLE, add_serve_flags),
        ("replay", replay.SUMMARY, replay.DESCRIPTION, replay.EXAMPLE, replay.add_flags),
        ("export", export.SUMMARY, export.DESCRIPTION, None, export.add_flags),
        ("prefetch", prefetch.SUMMARY, prefetch.DESCRIPTION, None, prefetch.add_flags),
    ):
        command = commands.add_parser(
            name,
            help=summary,
            description=description,
            epilog=example,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        add_flags(command)
        command.set_defaults(parser=command)
    return parser


def _run(arguments: list[str], process: EngineProcess | None) -> int:
    from inflight_engine.models import export
    from inflight_engine.models.remote import prefetch
    from inflight_engine.recording import command as replay
    from inflight_engine.server.settings.flags import read_config

    parser = build_parser()
    # The top parser answers --help, --version and unknown commands, and parses `replay`; the flags of `serve` may also
    # come from a file, so its own parser does the rest.
    chosen = parser.parse_args(arguments[:1] if arguments[:1] == ["serve"] else arguments)
    if chosen.command == "replay":
        return replay.run(chosen.file, as_json=chosen.json)
    if chosen.command == "export":
        return export.run(chosen.model, chosen.folder)
    if chosen.command == "prefetch":
        return prefetch.run(chosen)
    config = read_config(chosen.parser, arguments[1:])
    if process is None:
        parser.error("serve has to be the first argument")
    return serve(config, process)


def serve(config: ServerConfig, process: EngineProcess) -> int:
    """Serve until a signal or a request ends the server."""
    logs.configure(config.engine.log_format, config.engine.log_level)
    listeners: list[socket.socket] = []
    ports = {"listening": config.port, "admin calls": config.admin_port}
    for what, port in ports.items():
        if port is None:
            continue
        try:
            listeners.append(listen(config.host, port))
        except OSError as error:
            return _failed(config, f"cannot listen on {config.host} port {port}: {error.strerror or error}")
        logging.info("%s on %s port %d", what, *listeners[-1].getsockname()[:2])
    # A text is one piece of work: the tokenizers library computes it in the thread that asks, not in a pool of its own.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    config = _at_agreed_commit(config)
    process.load(config.engine)
    placement = placing.here(config.engine.num_threads)
    if placement is not None:
        placing.bind(placement.api)
    from inflight_engine.server.run import run

    failure = run(config, process, *listeners)
    status = 0 if failure is None else _failed(config, failure)
    sys.stdout.flush()
    sys.stderr.flush()
    _remove_model_files()
    # Not sys.exit: it would wait for threads of libraries that still download a model.
    os._exit(status)


def _at_agreed_commit(config: ServerConfig) -> ServerConfig:
    """Return the configuration with the commit that the first pod of this rollout took from the hub."""
    from inflight_engine.models.version import Rollout

    commit = Rollout(config.limits_file).commit
    return config if commit is None else replace(config, engine=replace(config.engine, revision=commit))


def _remove_model_files() -> None:
    shutil.rmtree(os.environ["INFLIGHT_MODEL_FILES"], ignore_errors=True)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket: connections wait in its backlog until the server takes them.

    Raises:
        OSError: the address is not this machine's, or the port is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    dual = family == socket.AF_INET6 and host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server((host, port), family=family, backlog=LISTEN_BACKLOG, dualstack_ipv6=dual)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """Exit at once: nothing is served yet, so there is nothing to drain. The engine process sees its socket close and
    exits too."""
    os._exit(0)


def _failed(config: ServerConfig, sentence: str) -> int:
    # The last line: Kubernetes shows the end of the log as the reason of a pod's end.
    line = " ".join(sentence.split())
    if config.engine.log_format == "json":
        logging.getLogger("inflight_engine").critical(line)
    else:
        print("error:", line, file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
