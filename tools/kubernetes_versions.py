"""The contract tests against the kube-apiserver of several versions of Kubernetes, and a table of what passed.

Each server is built from its Go module, which takes minutes of all cores and some GB of disk, and is kept in the cache.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.localcluster import ClusterError, layout
from tools.localcluster.commands import output
from tools.localcluster.files import write_whole
from tools.localcluster.layout import Layout
from tools.localcluster.node.plane import APISERVER_VARIABLE
from tools.localcluster.programs import gobuild, goparts, gotoolchain
from tools.localcluster.programs.goparts import KUBERNETES, Part
from tools.localcluster.progress import Progress, to_stdout
from tools.signals import exit_code, exit_on_signals

DEFAULT_VERSIONS = ("1.37", "1.36", "1.35", "1.34")
TESTS = ("tests/contract", "tests/chart")
COMMAND = f"{KUBERNETES}/cmd/kube-apiserver"


def staged_modules(go_mod: str) -> list[str]:
    """The modules that Kubernetes' own go.mod replaces with folders of its repository; they are published beside it."""
    return re.findall(r"^\s*(?:replace )?(\S+) => \./staging/src/\S+$", go_mod, re.MULTILINE)


def module_of(version: str, go_mod: str) -> str:
    """A go.mod that builds the API server of `version`, such as v1.36.3, from the text of its own go.mod."""
    go = re.search(r"^go \S+$", go_mod, re.MULTILINE)
    if go is None:
        raise ClusterError(f"the go.mod of Kubernetes {version} names no version of Go")
    staged = version.replace("v1.", "v0.", 1)
    return "\n".join(
        [
            f"module inflight.dev/e2e/kubernetes-{version}",
            go[0],
            f"require {KUBERNETES} {version}",
            *(f"replace {name} => {name} {staged}" for name in staged_modules(go_mod)),
            f"tool {COMMAND}",
            "",
        ]
    )


def apiserver(version: str, cache: Layout, progress: Progress) -> tuple[str, Path]:
    """The release of `version`, such as v1.35.4 for 1.35, and its kube-apiserver, built on first use.

    Raises:
        ClusterError: the module could not be fetched, or not be built.
    """
    go = str(gotoolchain.find_go(cache, progress))
    environment = gotoolchain.build_environment(os.environ, cache, 0)
    query = [go, "mod", "download", "-json", f"{KUBERNETES}@v{version.removeprefix('v')}"]
    module = json.loads(
        output(query, f"there is no module of Kubernetes {version} ({{last}})", cwd=Path("/"), env=environment)
    )
    release = module["Version"]
    if release == goparts.required_version((goparts.APISERVER.folder / "go.mod").read_text(), KUBERNETES):
        return release, gobuild.ensure_part(goparts.APISERVER, cache, progress) / goparts.APISERVER.name
    folder = cache.go / f"kubernetes-{release}"
    if not (folder / "go.sum").exists():
        write_whole(folder / "go.mod", module_of(release, Path(module["GoMod"]).read_text()))
        output([go, "mod", "tidy"], f"the modules of Kubernetes {release}: {{last}}", cwd=folder, env=environment)
    part = Part(goparts.APISERVER.name, str(folder), (COMMAND,))
    kept = Layout(cache.root)
    kept.bin = (
        cache.bin / f"kubernetes-{release}"
    )  # beside the cluster's own, which one build would replace by the other
    return release, gobuild.ensure_part(part, kept, progress, f" {release}") / part.name


def tested(binary: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Runs the contract tests on an API server, shown as they go; returns pytest's exit code and its last line."""
    command = [sys.executable, "-m", "pytest", "-m", "contract", *tests]
    environment = {**os.environ, APISERVER_VARIABLE: str(binary), "PYTHONUNBUFFERED": "1"}
    last = ""
    with subprocess.Popen(
        command, cwd=layout.REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                last = line.strip("= \n")
        except BaseException:
            process.send_signal(signal.SIGINT)  # its API servers, in sessions of their own, end with it
            process.communicate()
            raise
    return process.returncode, last


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit 0 when the tests passed on each version, 1 when not."""
    parser = argparse.ArgumentParser(prog="python -m tools.kubernetes_versions", description=__doc__)
    parser.add_argument(
        "versions", nargs="*", metavar="VERSION", default=list(DEFAULT_VERSIONS),
        help=f"minor or release of Kubernetes (default: {' '.join(DEFAULT_VERSIONS)})",
    )  # fmt: skip
    parser.add_argument("--tests", nargs="+", default=list(TESTS), help="files or folders (default: %(default)s)")
    options = parser.parse_args(arguments)
    return exit_code(lambda: _run(options.versions, options.tests), ClusterError, stopped="stopped")


def _run(versions: Sequence[str], tests: Sequence[str]) -> int:
    cache, progress = layout.current(), to_stdout()
    rows, failed = [], False
    try:
        for version in versions:
            release, binary = apiserver(version, cache, progress)
            code, said = tested(binary, tests)
            failed |= code != 0
            rows.append(f"| {release.removeprefix('v')} | {said} |")
    finally:
        gobuild.drop_caches(cache, progress)
        print("\n".join(["| Kubernetes | contract tests |", "|---|---|", *rows]))
    return int(failed)


if __name__ == "__main__":
    exit_on_signals()
    sys.exit(main())
