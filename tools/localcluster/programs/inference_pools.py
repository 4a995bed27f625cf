"""The CustomResourceDefinition of InferencePools, from the Gateway API Inference Extension's pinned Go module.

Nothing of the module is compiled: go.mod and go.sum name it alone. To take another version, change it in go.mod, delete
go.sum, run `go mod download sigs.k8s.io/gateway-api-inference-extension` there, and change the version in
docs/guides/gateway.md.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tools.localcluster.commands import output
from tools.localcluster.files import write_whole
from tools.localcluster.layout import GO_MODULES, Layout
from tools.localcluster.locking import exclusive
from tools.localcluster.programs import goparts, gotoolchain
from tools.localcluster.progress import Progress, step

NAME = "inferencepools.inference.networking.k8s.io"
MODULE = "sigs.k8s.io/gateway-api-inference-extension"
FOLDER = GO_MODULES / "inference-extension"
FILE = Path("config", "crd", "bases", "inference.networking.k8s.io_inferencepools.yaml")


def version() -> str:
    """The pinned release of the extension, like `v1.5.0`."""
    return goparts.required_version((FOLDER / "go.mod").read_text(), MODULE)


def ensure(layout: Layout, progress: Progress) -> Path:
    """Path of the definition, downloaded on first use.

    Raises:
        ClusterError: it cannot be downloaded, or is not the pinned one.
    """
    target = layout.go / f"inferencepools-{version()}.yaml"
    with exclusive(layout.locks / "inferencepools", "downloading the CRD of InferencePools", progress):
        if not target.exists():
            with step(progress, f"the CRD of InferencePools, {version()}"):
                write_whole(target, _download(layout, progress))
    return target


def _download(layout: Layout, progress: Progress) -> str:
    go = gotoolchain.find_go(layout, progress)
    with tempfile.TemporaryDirectory() as modules:
        # Go's own cache may be deleted at any time by the end of a build. `-modcacherw`: its files are read-only
        # otherwise, and this folder could not be deleted.
        own_cache = {"GOMODCACHE": modules, "GOFLAGS": "-modcacherw"}
        output(
            [str(go), "mod", "download", MODULE],
            f"the Go module {MODULE} could not be downloaded ({{complaint}}); "
            "check that Go modules can be fetched, and run this again",
            cwd=FOLDER,
            env=gotoolchain.build_environment(os.environ, layout, 0) | own_cache,
        )
        return Path(modules, f"{MODULE}@{version()}", FILE).read_text()
