"""Builds and publishes a release: `image` for each image on each architecture, then `publish` once.

Both push to a registry that docker, helm and crane are logged in to; one on localhost is spoken to without TLS. The
version is the tag's, and must be that of pyproject.toml or a pre-release of it.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from deploy.release import chart
from deploy.release.images import IMAGES, Crane, build
from tools.localcluster import ClusterError, layout
from tools.localcluster.layout import REPOSITORY
from tools.localcluster.progress import to_stdout
from tools.signals import exit_code

REFERENCES = "references.txt"
"""File with all that was published, by digest: what is to be signed."""


def version_of(tag: str) -> str:
    """The version of a release's tag: 0.2.0 of v0.2.0, and 0.2.0-rc.1 of v0.2.0-rc.1.

    Raises:
        ClusterError: it is not a tag of the version in pyproject.toml.
    """
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    if not re.fullmatch(rf"v{re.escape(version)}(-[0-9A-Za-z]+([.-][0-9A-Za-z]+)*)?", tag):
        raise ClusterError(f"the tag {tag} is not v{version} of pyproject.toml, nor a pre-release of it")
    return tag.removeprefix("v")


def is_local(registry: str) -> bool:
    """Returns whether a registry is on this machine, where it has no certificate."""
    return registry.partition("/")[0].partition(":")[0] in ("localhost", "127.0.0.1")


def publish(registry: str, version: str, machines: Sequence[str], names: Sequence[str], out: Path) -> list[str]:
    """Joins the pushed images, and writes and pushes the chart with their digests; returns all that was published.

    Raises:
        ClusterError: an image is missing in the registry, or it or helm refused something.
    """
    progress = to_stdout()
    crane = Crane(layout.current(), progress)
    pinned = {name: crane.join(IMAGES[name], registry, version, machines) for name in names}
    out.mkdir(parents=True, exist_ok=True)
    named = {IMAGES[name].name: reference for name, reference in pinned.items() if not IMAGES[name].suffix}
    archive = chart.package(named, version, out)
    chart.push(archive, registry, plain_http=is_local(registry))
    published = [*pinned.values(), crane.pinned(f"{registry}/inflight:{version}")]
    (out / REFERENCES).write_text("".join(f"{reference}\n" for reference in published))
    for path in (archive, *chart.write_manifests(archive, out)):
        progress(f"wrote {path}")
    for reference in published:
        progress(f"published {reference}")
    return published


def _argument(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign:
        raise argparse.ArgumentTypeError(f"{text} is not NAME=VALUE")
    return name, value


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m deploy.release", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    one = commands.add_parser("image", help="build an image for this machine's architecture, and push it")
    one.add_argument("image", choices=IMAGES)
    one.add_argument(
        "--build-arg", action="append", default=[], type=_argument, metavar="NAME=VALUE", help="of its Dockerfile"
    )
    one.add_argument("--no-sbom", dest="sbom", action="store_false", help="without a list of the image's packages")
    rest = commands.add_parser("publish", help="join the pushed images, push the chart, write the manifests")
    rest.add_argument("--machines", nargs="+", default=["amd64", "arm64"], help="architectures (default: %(default)s)")
    rest.add_argument("--out", type=Path, default=REPOSITORY / "build" / "release", help="folder for what is written")
    for command in (one, rest):
        for name, variable, text in (
            ("--registry", "RELEASE_REGISTRY", "registry and path to push to, such as HOST/TEAM"),
            ("--tag", "RELEASE_TAG", "tag of the release, such as v0.2.0"),
        ):
            given = os.environ.get(variable)
            command.add_argument(name, default=given, required=not given, help=f"{text} (default: ${variable})")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit 0 when it is done; 1 with a sentence when not."""
    options = parser().parse_args(arguments)
    return exit_code(lambda: _run(options), ClusterError)


def _run(options: argparse.Namespace) -> int:
    version = version_of(options.tag)
    if options.command == "image":
        image, given = IMAGES[options.image], dict(options.build_arg)
        build(image, options.registry, version, given, sbom=options.sbom, progress=to_stdout())
    else:
        publish(options.registry, version, options.machines, list(IMAGES), options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
