"""Command line of the local cluster."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from tools import localcluster
from tools.localcluster.errors import ClusterError
from tools.localcluster.programs import kubectl_program
from tools.localcluster.progress import to_stdout

DESCRIPTION = """A real Kubernetes for development, the demo and the tests.

It is, in this order: the cluster that INFLIGHT_KUBECONFIG names; a kind cluster, where Docker and kind are there;
a single node of its own, built from pinned Go modules (minutes once, seconds afterwards; needs Linux and root).
Everything lies in one folder: $INFLIGHT_CACHE, else $XDG_CACHE_HOME/inflight, else ~/.cache/inflight."""

EXAMPLE = """example:
  python -m tools.localcluster up --with-images
  python -m tools.localcluster kubectl get pods -A
  python -m tools.localcluster down"""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m tools.localcluster",
        description=DESCRIPTION,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str, example: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name, help=text, description=text, epilog=f"example: python -m tools.localcluster {example}"
        )

    up = add("up", "bring the cluster up, whatever state it is in; does nothing where it runs", "up")
    up.add_argument("--with-images", action="store_true", help="build all images meanwhile")
    down = add("down", "stop everything and put the host back as it was; built programs and images stay", "down")
    down.add_argument("--purge", action="store_true", help="delete the cache folder too")
    add("status", "show what runs", "status")
    build = add("build", "build one image where the cluster's pods find it", "build engine")
    build.add_argument("image", choices=localcluster.IMAGE_NAMES)
    add("build-all", "build all images", "build-all")
    run = add("kubectl", "run kubectl against the cluster", "kubectl get nodes")
    run.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS")
    add("kubeconfig", "print the path of the administrator's kubeconfig", "kubeconfig")
    add("promtool-path", "print the path of promtool, getting it first where it is missing", "promtool-path")
    check = add("preflight", "say whether this machine can run the cluster, and what to do where not", "preflight")
    check.add_argument("--disk", type=int, metavar="GB", help="free disk to ask for (default: what `up` asks for)")
    return top


def run(options: argparse.Namespace) -> None:
    progress = to_stdout()
    if options.command == "up":
        localcluster.ensure_up(progress, localcluster.IMAGE_NAMES if options.with_images else ())
    elif options.command == "down":
        localcluster.chosen(progress).down(purge=options.purge)
    elif options.command == "status":
        print("\n".join(localcluster.chosen(progress).status()))
    elif options.command == "build":
        print(localcluster.build_image(options.image, progress))
    elif options.command == "build-all":
        for name in localcluster.IMAGE_NAMES:
            print(localcluster.build_image(name, progress))
    elif options.command == "kubectl":
        kubectl_program.replace_process(localcluster.kubeconfig_path(), options.arguments)
    elif options.command == "kubeconfig":
        print(localcluster.kubeconfig_path())
    elif options.command == "promtool-path":
        print(localcluster.promtool(lambda line: print(line, file=sys.stderr)))
    elif options.command == "preflight":
        print(localcluster.require_machine(options.disk))


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 done, 1 failed (one sentence on standard error says why), 2 wrong usage."""
    options = parser().parse_args(arguments)
    try:
        run(options)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command goes on where it was", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of the output has gone (`| head`): say no more, also not when Python flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
